import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from gateway.cli import main
from gateway.commands.sensitivity import labelled
from gateway.core.usage import TokenUsage
from gateway.ledger.slices import Slice
from router_policies.waiting import Seen, features
from tests.backtests.test_history import ENTRY as OTHER
from tests.build import PLAIN, Gateway, backend, chat_answer, chat_body
from tests.upstream import whole

ENTRY = replace(OTHER, reason="class interactive (default); ...", total_ms=1_000.0, latency_class="interactive")


def next_turn(gap_s, tokens=2_000, **given):
    return replace(ENTRY, id="2", at_us=ENTRY.at_us + int((1.0 + gap_s) * 1e6), tokens=TokenUsage(uncached=tokens, output=5), **given)


@pytest.mark.parametrize(("after", "waited"), [
    pytest.param(next_turn(12.0), 1, id="a person reads and types"),
    pytest.param(next_turn(0.05), 0, id="a program goes on at once"),
    pytest.param(next_turn(2.0), None, id="between the two nothing is known"),
    pytest.param(next_turn(5_000.0), None, id="who comes back after hours did not wait"),
    pytest.param(next_turn(0.05, tokens=10), None, id="another conversation says nothing"),
    pytest.param(next_turn(0.05, client="other"), None, id="nor does another client"),
    pytest.param(next_turn(0.05, session="another"), None, id="nor another person of the same app and key"),
])
def test_what_comes_next_tells_who_waited(after, waited):
    """From the end of the answer to the next turn of the same conversation."""
    assert next(labelled([ENTRY, after])).waited == waited


@pytest.mark.parametrize(("name", "waited"), [("interactive", 1), ("batch", 0), ("agent", 0)])
def test_the_clients_word_is_believed(name, waited):
    """Whatever the gap says."""
    said = replace(ENTRY, reason=f"class {name} (client's word); ...", latency_class=name)
    assert next(labelled([said, next_turn(0.01)])).waited == waited


def test_corrections_and_second_attempts_are_no_calls():
    """One call, one row."""
    assert len(list(labelled([ENTRY, replace(ENTRY, id="x", attempt=2), replace(ENTRY, id="y", kind="correction")]))) == 1


@pytest.mark.parametrize(("args", "says"), [
    (("train", "--config", "none.yaml"), "there is no such file"), (("show", "--config", "none.yaml"), "there is no such file"),
    (("train", "--config", "tollway.yaml"), "There is no ledger yet"), (("show", "--config", "tollway.yaml"), "train one with"),
])
def test_what_is_missing_is_told(tmp_path, monkeypatch, args, says):
    """A sentence, not a stack trace."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tollway.yaml").write_text("backends: {b: {dialect: openai, url: http://127.0.0.1:9, models: [m]}}\n")
    answer = CliRunner().invoke(main, ["sensitivity", *args])
    assert answer.exit_code == 1
    assert says in answer.output
    assert "Traceback" not in answer.output


def test_the_gateway_and_the_training_see_the_same(tmp_path, upstream):
    """What a decision is told of a call while it is served is what the ledger's entry of it says later; only the prompt's length
    is an estimate here and the provider's count there."""
    site, seen = upstream.site(tmp_path.name), []
    site.says(whole(chat_answer()))
    with Gateway(tmp_path, {"backends": {"b": backend(site)}}, {"plain": PLAIN}) as gateway:
        services = gateway.asgi.services
        services.learnt = lambda policy, ask: seen.append(ask)
        for turns, headers in ((1, {}), (2, {}), (1, {"x-tollway-run": "r1"})):
            asked = {"role": "user", "content": "a text " * 20}
            messages = [asked, *[{"role": "assistant", "content": "Hello there."}, asked] * (turns - 1)]
            assert gateway.chat(chat_body(site.model, messages=messages), headers=headers).status_code == 200
        gateway.booked(site, 3)
        entries = services.reports.entries(Slice(), 10, (0, ""))
    live = {Seen(ask.team, ask.hour * 3600.0, ask.stream, ask.client, 0, ask.in_run, ask.gap_s) for ask in seen}
    # the provider's count is the same for all: for the ledger the second would be no longer than the first
    entries = [replace(entry, tokens=TokenUsage(uncached=100 + n, output=5)) for n, entry in enumerate(entries)]
    later = [one._replace(prompt_tokens=0) for one in labelled(entries)]
    assert {features(one, {}) for one in live} == {features(one, {}) for one in later}
    assert sorted(round(one.gap_s, 3) for one in live if one.gap_s is not None) == sorted(round(one.gap_s, 3) for one in later if one.gap_s is not None)
    assert sum(one.gap_s is not None for one in live) == 1
