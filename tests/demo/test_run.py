from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.core.money import nanos
from gateway.demo import command
from gateway.demo.progress import Shown
from tests.build import Gateway
from tests.demo.conftest import LIMIT, FakeEngine, session
from tests.upstream import PATIENCE_S, End, Reply, whole

Demo = Callable[..., Result]
JSON = ("--json",)
ERROR = {"error": {"message": "out of paper", "type": "server_error", "code": "no_paper"}}


def keys_left(up: Gateway) -> list[Any]:
    """Keys of demos that are still good."""
    keys = up.ask("GET", "/tollway/admin/keys").json()
    return [key for key in keys if key["name"].startswith("tollway demo") and key["revoked_us"] is None]


def test_each_team_replays_each_session_as_its_policy_has_it(demo: Demo, engine: FakeEngine, up: Gateway) -> None:
    """`assistant` streams in the high-speed lane, `nightly` takes whole answers in the standard lane, turn by turn."""
    one, two = session("one", 3), session("two", 2)
    assert demo(one, two, args=("--concurrency", "1")).exit_code == 0
    sent = [(call["service_tier"], call["stream"], len(call["messages"])) for call in engine.calls]
    fast, slow = ("priority", True), ("default", False)
    of_one, of_two = (2, 4, 6), (2, 4)
    assert sent == [
        *((*fast, n) for n in of_one), *((*slow, n) for n in of_one), *((*fast, n) for n in of_two), *((*slow, n) for n in of_two),
    ]  # fmt: skip
    assert all(call["max_tokens"] == 24 and call["tools"] == one["tools"] for call in engine.calls)
    assert keys_left(up) == []


@pytest.mark.parametrize("at_once", ["1", "2"])
def test_the_bill_is_the_ledgers_and_the_engines(demo: Demo, engine: FakeEngine, at_once: str) -> None:
    """What is printed is what the engine counted for this demo, by lane."""
    before = {tier: list(counts) for tier, counts in engine.counted.items()}
    run = demo(session("a", 4), session("b", 3), args=("--json", "--concurrency", at_once))
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    for row, tier in zip(sorted(told["bill"]["rows"], key=lambda row: row["lane"]), ("priority", "default"), strict=True):
        grown = [now - then for now, then in zip(engine.counted[tier], before.get(tier, [0, 0, 0]), strict=True)]
        assert [row["uncached"] + row["cache_read"], row["cache_read"], row["output"]] == grown
        assert (row["calls"], row["output"]) == (7, 7 * 12)
    assert [check["ok"] for check in told["checks"]] == [True, True]
    assert told["turns"] == {"sent": 14, "answered": 14, "at_context_limit": 0}
    assert (told["errors"], told["interrupted"], told["sessions"]) == ([], False, 2)


def test_what_caching_and_routing_saved_follows_from_the_price_rows(demo: Demo) -> None:
    """2 and 5 cents per million uncached tokens, a tenth of it for cached ones, 8 and 20 cents for output."""
    told = json.loads(demo(session("p", 4), args=JSON).stdout)
    fast, slow = sorted(told["bill"]["rows"], key=lambda row: row["lane"])

    def cost(row: dict[str, Any], factor: int, *, cached: bool = True) -> int:
        read = row["cache_read"] if cached else 0
        return (10 * (row["input_total"] - read) + read + 40 * row["output"]) * factor

    total = told["bill"]["total"]
    assert nanos(total["cost_usd"]) == cost(fast, 5) + cost(slow, 2)
    assert nanos(total["cost_if_uncached_usd"]) == cost(fast, 5, cached=False) + cost(slow, 2, cached=False)
    routing = told["routing"]
    assert nanos(routing["all_fast_usd"]) == cost(fast, 5) + cost(slow, 5)
    assert nanos(routing["saved_usd"]) == cost(slow, 5) - cost(slow, 2)
    assert routing["price_row"] == "prices:embedded/smollm2-135m-instruct@2025-01-01#priority"
    assert routing["price_source"] == "the tests"


def test_people_read_tables_and_check_lines(demo: Demo) -> None:
    run = demo(session("read", 3))
    assert run.exit_code == 0
    lines = run.stdout.splitlines()
    assert any(line.split()[:4] == ["assistant", "interactive", "fast", "3"] for line in lines)
    assert any(line.split()[:4] == ["nightly", "batch", "standard", "3"] for line in lines)
    assert any(line.startswith("caching saved $") for line in lines)
    assert any(line.startswith("routing saved $") and "#priority" in line for line in lines)
    assert [line.split(":")[1].strip() for line in lines if line.startswith("checks: ")] == ["ok", "ok"]
    assert "assistant 1/1: read, 3 of 3 turns answered" in run.stderr


def test_a_session_past_the_context_limit_ends_there_and_is_counted(demo: Demo, engine: FakeEngine) -> None:
    """That is no error: nothing was computed and nothing is billed for it."""
    long = session("long", 4, words=LIMIT // 3)
    told = json.loads((run := demo(long, session("short", 2), args=JSON)).stdout)
    assert run.exit_code == 0
    assert told["turns"] == {"sent": 10, "answered": 8, "at_context_limit": 2}
    assert told["errors"] == []
    assert [check["ok"] for check in told["checks"]] == [True, True]
    assert {row["team"]: (row["calls"], row["failed"]) for row in told["bill"]["rows"]} == {"assistant": (5, 1), "nightly": (5, 1)}


def test_any_other_error_is_named_and_ends_its_session_only(demo: Demo, engine: FakeEngine) -> None:
    engine.instead = lambda number: whole(ERROR, 400) if number == 2 else None
    run = demo(session("torn", 3), session("whole", 2), args=("--concurrency", "1"))
    assert run.exit_code == 1
    assert "error no_paper, 1 x, first in assistant torn turn 2: out of paper" in run.stdout
    assert len(engine.calls) == 2 + 3 + 2 + 2


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once the first Ctrl-C has been seen."""
    event, say = threading.Event(), Shown.say

    def tells(shown: Shown, text: str) -> None:
        say(shown, text)
        if "Ctrl-C again" in text:
            event.set()

    monkeypatch.setattr(Shown, "say", tells)
    return event


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_after_the_turns_under_way_with_the_bill_so_far(
    demo: Demo, engine: FakeEngine, up: Gateway, seen: threading.Event
) -> None:
    """Nothing is cut off, so the bill is still exact."""

    def third(number: int) -> Reply | None:
        if number == 3:
            interrupt()
            assert seen.wait(PATIENCE_S)    # while this turn is still under way
        return None

    engine.instead = third
    run = demo(session("x", 4), session("y", 4), args=("--json", "--concurrency", "1"))
    assert run.exit_code == 130
    told = json.loads(run.stdout)
    assert told["interrupted"]
    assert told["turns"]["answered"] == told["bill"]["total"]["calls"] == 3
    assert [check["ok"] for check in told["checks"]] == [True, True]
    assert "Ctrl-C again" in run.stderr
    assert keys_left(up) == []


def test_a_second_ctrl_c_cuts_off(demo: Demo, engine: FakeEngine, up: Gateway, seen: threading.Event) -> None:
    """The ledger has an estimate then, so it is not held against the engine."""

    def hang(number: int) -> Reply | None:
        if number < 3:
            return None
        interrupt()
        threading.Thread(target=lambda: seen.wait(PATIENCE_S) and interrupt()).start()
        return Reply(before=(End.HANG,))

    engine.instead = hang
    run = demo(session("x", 4), args=("--json", "--concurrency", "1"))
    assert run.exit_code == 130
    told = json.loads(run.stdout)
    assert told["turns"]["answered"] == 2
    assert told["checks"][0]["ok"] is None
    assert "cut off" in told["checks"][0]["text"]
    assert keys_left(up) == []


def test_tokens_that_the_ledger_does_not_have_are_found(demo: Demo, engine: FakeEngine) -> None:
    """One token that was generated and not told is enough."""
    engine.lost = 1
    run = demo(session("z", 2))
    assert run.exit_code == 1
    assert "checks: FAILED: ledger and engine's own counters differ" in run.stdout


def test_calls_of_others_do_not_disturb_the_comparison(demo: Demo, up: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the ledger and in the engine's counters, and not in the bill."""
    body = {"model": "smollm2-135m-instruct", "max_tokens": 8, "stream": False, "messages": [{"role": "user", "content": "hello"}]}
    others, tell = list[int](), Shown.tell

    def tells(shown: Shown, *turn: Any) -> None:
        if not others:
            others.append(up.chat(body, "demo").status_code)
        tell(shown, *turn)

    monkeypatch.setattr(Shown, "tell", tells)
    told = json.loads((run := demo(session("o", 4), args=JSON)).stdout)
    assert others == [200]
    assert (run.exit_code, told["checks"][0]["ok"], told["bill"]["total"]["calls"]) == (0, True, 8)


def test_a_prefix_that_was_not_found_again_is_counted(demo: Demo, engine: FakeEngine) -> None:
    engine.caches = False
    run = demo(session("cold", 3))
    assert run.exit_code == 1
    assert "checks: FAILED: cached tokens > 0 in 0 of 4 turns after a session's first" in run.stdout


def test_without_the_engines_address_the_comparison_is_left_out(demo: Demo, tmp_path: Path) -> None:
    """A gateway of production has no run.json; the rest is as ever."""
    run = demo(session("far", 2), data=tmp_path)
    assert run.exit_code == 0
    assert "checks: skipped: ledger not compared" in run.stdout
    assert "run.json is not there" in run.stdout


def test_the_demo_needs_an_admin_key_and_a_gateway(up: Gateway) -> None:
    member = CliRunner().invoke(command, ["--url", up.url, "--key", up.key("demo")])
    assert member.exit_code == 1
    assert "or an admin" in member.output
    nobody = CliRunner().invoke(command, ["--url", "http://127.0.0.1:9", "--key", "x"])
    assert nobody.exit_code == 1
    assert "tollway up" in nobody.output


def test_price_rows_in_force_are_shown_to_admins_only(up: Gateway) -> None:
    """The operator's own files win, as they do when a call is priced."""
    path = "/tollway/admin/prices?model=embedded/smollm2-135m-instruct"
    rows = up.ask("GET", path).json()
    assert [row["tier"] for row in rows] == ["default", "priority"]
    assert rows[1]["prices"] == {"input": "0.05", "cached": "0.005", "output": "0.2"}
    assert up.ask("GET", path, up.key("demo")).status_code == 403
    assert up.ask("GET", "/tollway/admin/prices?model=embedded/nothing").json() == []
