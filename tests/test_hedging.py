"""A second lane beside a silent first one: who answers, who is stopped, what is booked."""
from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.build import PLAIN, Gateway, backend, chat_answer, chat_body, chat_stream
from tests.flow.test_hang_up import dial
from tests.upstream import HANG, PATIENCE_S, Gate, Pause, Site, Upstream, stream, until, whole

DEAR_TIME = {"value_usd_per_hour": 100_000, "hedge": True}
"""Half the expected wait of silence is enough."""
QUICK = {"first_token_ms": 200, "ms_per_output_token": 1, "spread": 0.3}
Pair = tuple[Gateway, Site, Site]


@pytest.fixture
def pair(upstream: Upstream, tmp_path: Path) -> Iterator[Pair]:
    """Two backends for one model; `second` is the dearer one."""
    first, second = upstream.site(f"{tmp_path.name}-first"), upstream.site(f"{tmp_path.name}-second")
    backends = {
        "first": backend(first, models=["m-two"], lanes={"standard": QUICK}),
        "second": backend(second, models=["m-two"], lanes={"standard": {**QUICK, "first_token_ms": 220, "service_tier": "priority"}}),
    }
    policies = {
        "plain": {**PLAIN, "classes": {"standard": DEAR_TIME}},
        "never": PLAIN,
        "poor": {
            **PLAIN, "classes": {"standard": DEAR_TIME},
            "budgets": [{"name": "one-call", "limit_usd": "0.0012", "window": "total"}],
        },
    }  # fmt: skip
    with Gateway(tmp_path, {"backends": backends}, policies) as gateway:
        yield gateway, first, second


def attempts(gateway: Gateway, answer: Any) -> list[dict[str, Any]]:
    found = gateway.call(answer.headers["x-tollway-call"])["attempts"]
    return sorted(found, key=lambda attempt: str(attempt["backend"]))


@pytest.mark.parametrize("streams", [False, True])
def test_the_second_lane_answers_for_a_silent_first(pair: Pair, streams: bool) -> None:
    """The client gets the second's bytes; the first is stopped, and booked as lost with the prompt it has read."""
    gateway, first, second = pair
    first.says(HANG)
    second.says(stream(*chat_stream()) if streams else whole(chat_answer()))
    body = chat_body("m-two", stream=True, stream_options={"include_usage": True}) if streams else chat_body("m-two")
    answer = gateway.chat(body)
    assert answer.status_code == 200
    assert answer.headers["x-tollway-backend"] == "second"
    assert "hedge: first/standard was silent" in answer.headers["x-tollway-reason"]
    if streams:
        assert answer.content == b"".join(chat_stream())
    assert first.wait_for(1).hung_up.wait(PATIENCE_S)
    until(lambda: len(attempts(gateway, answer)) == 2, "both to be booked")
    loser, winner = attempts(gateway, answer)
    assert (loser["status"], loser["tokens_from"], winner["status"], winner["tokens_from"]) == ("lost", "estimate", "ok", "provider")
    assert loser["tokens"]["output"] == 0
    assert float(loser["cost_usd"]) > 0, "what it read may be billed"
    assert float(gateway.call(answer.headers["x-tollway-call"])["cost_usd"]) == pytest.approx(
        float(loser["cost_usd"]) + float(winner["cost_usd"])
    )


def test_a_first_lane_that_wakes_up_wins(pair: Pair) -> None:
    """The second was asked, and is stopped."""
    (gateway, first, second), gate = pair, Gate()
    first.says(whole(chat_answer("from the first"), before=(gate,)))
    second.says(HANG)
    gateway.key()
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(gateway.chat, chat_body("m-two"))
        asks_second = second.wait_for(1)
        gate.open()
        answer = asked.result()
    assert answer.headers["x-tollway-backend"] == "first"
    assert asks_second.hung_up.wait(PATIENCE_S)
    until(lambda: len(attempts(gateway, answer)) == 2, "both to be booked")
    assert [attempt["status"] for attempt in attempts(gateway, answer)] == ["ok", "lost"]


def test_nothing_is_hedged_after_the_first_byte(pair: Pair) -> None:
    """However long the stream then says nothing. One of three must show it: a slow machine may be late with the first byte."""
    gateway, first, second = pair
    first.says(stream(*chat_stream()[:2], Pause(0.8), *chat_stream()[2:]))
    second.says(HANG)

    def is_not_hedged() -> bool:
        seen = len(second.requests)
        answer = gateway.chat(chat_body("m-two", stream=True, stream_options={"include_usage": True}))
        assert answer.content == b"".join(chat_stream())
        return len(second.requests) == seen

    assert any(is_not_hedged() for _ in range(3))


def test_a_class_that_does_not_ask_for_it_has_none(pair: Pair) -> None:
    """It waits."""
    gateway, first, second = pair
    first.says(whole(chat_answer(), before=(Pause(0.8),)))
    assert gateway.chat(chat_body("m-two"), team="never").status_code == 200
    assert second.requests == []


def test_hedges_stay_in_the_retry_budget(pair: Pair) -> None:
    """Three in ten seconds at each backend, for as few calls as these."""
    gateway, first, second = pair
    first.says(whole(chat_answer(), before=(Pause(0.4),)))
    second.says(whole(chat_answer(), before=(Pause(0.4),)))
    began = time.monotonic()
    for _ in range(12):
        assert gateway.chat(chat_body("m-two")).status_code == 200
    periods = 1 + int((time.monotonic() - began) / 10)
    assert 12 < len(first.requests) + len(second.requests) <= 12 + 6 * periods


def test_where_the_second_fails_the_first_is_waited_for(pair: Pair) -> None:
    """Its error is nobody's."""
    (gateway, first, second), gate = pair, Gate()
    first.says(whole(chat_answer(), before=(gate,)))
    second.says(whole({"error": {"message": "busy", "type": "x"}}, 503))
    gateway.key()
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(gateway.chat, chat_body("m-two"))
        until(lambda: gateway.metric("tollway_attempts_total") == 1, "the second's error")
        gate.open()
        answer = asked.result()
    assert (answer.status_code, answer.headers["x-tollway-backend"]) == (200, "first")
    until(lambda: len(attempts(gateway, answer)) == 2, "both to be booked")
    assert [attempt["status"] for attempt in attempts(gateway, answer)] == ["ok", "failed"]


def test_a_budget_that_pays_for_one_attempt_pays_for_no_second(pair: Pair) -> None:
    """Each attempt has a hold of its own."""
    gateway, first, second = pair
    first.says(whole(chat_answer(), before=(Pause(0.6),)))
    answer = gateway.chat(chat_body("m-two", max_tokens=40), team="poor")
    assert answer.status_code == 200
    assert second.requests == []


def test_a_client_that_leaves_stops_both(pair: Pair) -> None:
    """Both are booked as left by it."""
    gateway, first, second = pair
    first.says(HANG)
    second.says(HANG)
    sock = dial(gateway, "/v1/chat/completions", chat_body("m-two"))
    second.wait_for(1)
    sock.close()
    assert first.wait_for(1).hung_up.wait(PATIENCE_S)
    assert second.wait_for(1).hung_up.wait(PATIENCE_S)
    rows = until(lambda: [row for row in gateway.ask("GET", "/tollway/usage?by=status").json()["rows"] if row["attempts"] == 2], "both")
    assert [row["status"] for row in rows] == ["client_gone"]
