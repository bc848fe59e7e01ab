from itertools import islice
from pathlib import Path

import pytest

from gateway.backtests.engines import EngineFailed, Task, _far_job, _lists, _texts, here
from gateway.backtests.traffic import Traffic
from router_policies.backtest import Part
from router_policies.menus import menu

LINES = "".join(f'{{"at_s": {n}, "prompt_tokens": {100 + n}, "output_tokens": 5}}\n' for n in range(50))


@pytest.fixture
def traffic(tmp_path: Path) -> Traffic:
    (tmp_path / "calls.jsonl").write_text(LINES)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.yaml").write_text("team: a\n")
    return Traffic(traces=(tmp_path / "calls.jsonl",), config=None, since=None, until=None, team="a", model="m", shares=(), most=None)


def test_parts_are_handed_out_with_what_they_warm_up_by(traffic):
    """From one reading of the traffic."""
    pieces = [Part(0, 0, 20), Part(12, 20, 40), Part(31, 40, 50)]
    handed = {piece: [call.prompt_tokens - 100 for call in calls] for piece, calls in _lists(traffic, pieces)}
    assert handed == {piece: list(range(piece.warm, piece.end)) for piece in pieces}


def test_a_far_job_needs_no_file_of_this_machine(traffic, tmp_path):
    """Calls and policy files travel with it; what it comes to is what a run here comes to."""
    texts, calls = _texts(tmp_path / "p"), list(traffic.calls())
    far = _far_job(texts, calls[10:], menu(), 1, Part(10, 20, 50))
    (near, _) = here(Task((tmp_path / "p", tmp_path / "p"), traffic, menu(), 1))
    assert far.sums().calls == 30
    assert far.groups() == near.groups() == [("a", "standard")]
    assert far.sums().cost_usd == pytest.approx(sum(near.sums(stretches=[n]).cost_usd for n in range(20, 50)))


def test_a_process_that_dies_is_told(traffic, tmp_path, monkeypatch):
    """As a sentence, and without waiting for ever."""
    monkeypatch.setattr("gateway.backtests.engines._job", _die)
    with pytest.raises(EngineFailed, match="ended too early"):
        here(Task((tmp_path / "p", tmp_path / "p"), traffic, menu(), 1))


def _die(*_):
    import os

    os._exit(9)


def test_calls_are_counted_before_they_are_read(traffic):
    """For the progress bar."""
    assert traffic.count() == 50
    assert len(list(islice(traffic.calls(), 60))) == 50
