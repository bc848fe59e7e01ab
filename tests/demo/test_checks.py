from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.demo.bill import Bill
from gateway.demo.checks import Engine, NoEngine, Reading, cached_from_second_turn, ledger_is_engine
from gateway.demo.replay import Turn

NOTHING = Reading(ledger={}, engine={}, estimated=0)
BOTH = {"default": (10, 4, 3)}


def reading(ledger: Any = BOTH, engine: Any = BOTH, estimated: int = 0) -> Reading:
    return Reading(ledger=ledger, engine=engine, estimated=estimated)


@pytest.mark.parametrize(
    ("before", "after", "ok"),
    [
        pytest.param(NOTHING, reading(), True, id="equal"),
        pytest.param(NOTHING, NOTHING, True, id="nothing happened"),
        pytest.param(reading(), reading({"default": (30, 8, 9)}, {"default": (30, 8, 9)}), True, id="equal growth"),
        pytest.param(
            reading({"default": (11, 4, 3)}), reading({"default": (31, 8, 9)}, {"default": (30, 8, 9)}), True,
            id="an old difference does not count",
        ),
        pytest.param(NOTHING, reading({"default": (10, 4, 4)}), False, id="one output token more"),
        pytest.param(NOTHING, reading({"default": (10, 5, 3)}), False, id="one cached token more"),
        pytest.param(NOTHING, reading({"priority": (10, 4, 3)}), False, id="the other tier"),
        pytest.param(NOTHING, reading({**BOTH, "flex": (0, 0, 0)}), True, id="a tier without tokens"),
        pytest.param(NOTHING, reading(estimated=1), None, id="an estimate in the ledger"),
    ],
)  # fmt: skip
def test_the_ledger_grows_as_the_engine_does(before: Reading, after: Reading, ok: bool | None) -> None:
    """To the token and for each tier; an estimate is never held against a count."""
    assert ledger_is_engine(before, after, cut_off=0).ok is ok
    assert ledger_is_engine(before, after, cut_off=1).ok is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(None, "is not there", id="no file"),
        pytest.param("{", "names no engine", id="no JSON"),
        pytest.param('{"engine": null}', "names no engine", id="no engine"),
    ],
)
def test_without_a_run_file_there_is_no_engine(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(NoEngine, match=why):
        Engine.of(tmp_path)


def test_an_engine_that_is_gone_is_told(tmp_path: Path) -> None:
    """After a kill -9 the file may be older than the engine."""

    class Gateway:
        def ask(self, method: str, path: str, **how: Any) -> Any:
            return {"rows": [], "total": {"estimated": 0}}

    (tmp_path / "run.json").write_text(json.dumps({"engine": {"url": "http://127.0.0.1:9", "backend": "embedded"}}))
    with pytest.raises(NoEngine, match="does not tell its counters"):
        Engine.of(tmp_path).read(Gateway())


def bill(cached: dict[str, int]) -> Bill:
    calls = {call_id: {"cache_read": count} for call_id, count in cached.items()}
    return Bill(rows=[], total={}, calls=calls, first_token=[], whole_answer=[], routing={})


def test_only_later_turns_that_were_answered_must_have_found_their_prefix() -> None:
    first = Turn(session="s", team="t", number=1, call_id="c1")
    later = Turn(session="s", team="t", number=2, call_id="c2")
    refused = Turn(session="s", team="t", number=3, call_id="c3", code="context_length_exceeded")
    turns = [first, later, refused]
    assert cached_from_second_turn(turns, bill({"c1": 0, "c2": 16})).ok
    cold = cached_from_second_turn(turns, bill({"c1": 0, "c2": 0}))
    assert (cold.ok, cold.figures) == (False, {"turns": 1, "without": 1, "calls": ["c2"]})
    assert "t s turn 2" in cold.text
    assert cached_from_second_turn([first], bill({})).ok is None


def test_a_call_that_the_ledger_does_not_have_counts_as_not_found() -> None:
    assert cached_from_second_turn([Turn(session="s", team="t", number=2, call_id="lost")], bill({})).ok is False
