"""A prompt's beginning is written shortly before the conversations that will have it, once, where that pays, for the team."""
from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timedelta
from datetime import time as clock
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import orjson
import pytest

from benchmarks.prefix_world import AT_ONCE_S, Clock, World, gateway, world
from benchmarks.providers.server import Providers, Seen
from gateway.app import Gateway
from tests.redis_server import Server
from tests.test_warming import until, usage

Json = dict[str, Any]
LONG = "toll road " * 3_000
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in "tu"]
PATIENT = {"value_usd_per_hour": 0}
HURRIED = {"value_usd_per_hour": 60}
DAY_S = 86_400.0


def policy(start_s: float, klass: Json, **cache: Any) -> Json:
    """Traffic begins at that time (epoch seconds) on all days."""
    begins = f"{datetime.fromtimestamp(start_s, ZoneInfo('UTC')):%H:%M}"
    return {
        "normalize": {"level": "lossless", "hold_out": 0}, "classes": {"mine": klass}, "default_class": "mine",
        "cache": {"hold_out": 0, "pre_warm_usd_per_day": 1, "pre_warm_at": [{"time": begins}], **cache},
    }  # fmt: skip


def opening(number: int, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": f"{number} " + "words " * 40}]
    return orjson.dumps({"model": "anthropic-model", "max_tokens": 9, "tools": TOOLS, "system": LONG, "messages": messages, **fields})


def next_minute() -> float:
    """The first full minute that is ten minutes away, epoch seconds."""
    return (datetime.now(ZoneInfo("UTC")).replace(second=0, microsecond=0) + timedelta(minutes=10)).timestamp()


def morning(running: World, at_s: float, calls: int = 10, app: str = "app") -> list[Seen]:
    """What the provider counted of conversations that begin together."""
    return running.send("anthropic", app, [opening(int(at_s) + n) for n in range(calls)], at_s)


def wrote(seen: list[Seen]) -> int:
    """How many wrote the beginning."""
    return sum(one.used is not None and sum(one.used.written.values()) > 5_000 for one in seen)


def pings(running: World) -> list[Seen]:
    return [seen for seen in running.providers.seen if seen.body.get("max_tokens") == 0]


def look(running: World) -> Future[Any]:
    """The gateway looks what is due, now."""

    async def turn(gateway: Gateway) -> int:
        assert gateway.services is not None
        return await gateway.services.pre_warmer.turn(time.time_ns() // 1_000)

    return running.inside(turn)


def held(running: World) -> list[Json]:
    """Beginnings whose text is held."""

    async def bodies(gateway: Gateway) -> list[Json]:
        assert gateway.services is not None
        return [orjson.loads(kept.call.body) for kept in gateway.services.pre_warmer._kept.values()]

    found: list[Json] = running.inside(bodies).result(60)
    return found


def known(running: World) -> int:
    return len(held(running))


def test_the_first_calls_of_a_day_read_and_do_not_write() -> None:
    """Real gateway, simulated provider: the second day's beginning is written half a minute before its time."""
    start_s = next_minute()
    with world(policy(start_s, HURRIED)) as running:
        first = start_s - running.clock.start_s
        assert wrote(morning(running, first + 5)) == 1
        running.clock.set(first + DAY_S - 30)
        look(running).result(60)
        until(lambda: len(pings(running)) == 1)
        [ping] = pings(running)
        assert set(ping.body) == {"model", "max_tokens", "tools", "system", "messages", "stream"}
        assert ping.body["messages"] == [{"role": "user", "content": "."}]
        second = morning(running, first + DAY_S + 5)
        assert wrote(second) == 0
        assert all(one.used is not None and one.used.read > 5_000 for one in second)
        rows = {row["client"]: row for row in usage(running, by="client")["rows"]}
        assert (rows["app/1"]["calls"], rows["pre_warm"]["calls"]) == (20, 1)
        assert {row["key"]: row["calls"] for row in usage(running, by="key")["rows"]}["pre_warm"] == 1  # of no caller's key
        [told] = usage(running, report="cache", since="2d")["warmed"]
        assert (told["kind"], told["calls"], told["of_use"], told["cost_usd"]) == ("pre_warm", 1, 1, rows["pre_warm"]["cost_usd"])
        assert float(told["saved_usd"]) > 0.9 * 0.9 * 7_500 * 3e-6


def test_late_ones_find_it_too_if_that_pays() -> None:
    """Who comes twenty minutes after the time finds what was written for an hour."""
    start_s = next_minute()
    with world(policy(start_s, HURRIED)) as running:
        first = start_s - running.clock.start_s
        morning(running, first + 1_200)
        running.clock.set(first + DAY_S - 30)
        look(running).result(60)
        until(lambda: len(pings(running)) == 1)
        assert pings(running)[0].body["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
        assert wrote(morning(running, first + DAY_S + 1_200)) == 0


def test_a_day_begins_by_the_clocks_of_its_zone() -> None:
    """The night before, clocks there were changed: by those of UTC it is an hour earlier, or later."""
    berlin = ZoneInfo("Europe/Berlin")
    mornings = [datetime.combine(datetime.now(berlin).date() + timedelta(days=n), clock(8), berlin) for n in range(1, 400)]
    before, after = next(pair for pair in pairwise(mornings) if pair[0].utcoffset() != pair[1].utcoffset())
    with world(policy(0, HURRIED, pre_warm_at=[{"time": "8:00", "timezone": "Europe/Berlin"}])) as running:
        morning(running, before.timestamp() + 5 - running.clock.start_s)
        eight = after.timestamp() - running.clock.start_s
        assert abs(eight - before.timestamp() + running.clock.start_s - DAY_S) == 3_600
        for wrong in (-3_630, -120):
            running.clock.set(eight + wrong)
            look(running).result(60)
        assert pings(running) == []
        running.clock.set(eight - 30)
        look(running).result(60)
        until(lambda: len(pings(running)) == 1)
        assert wrote(morning(running, eight + 5)) == 0


@pytest.mark.parametrize(("klass", "cache", "expected"), [
    pytest.param(HURRIED, {}, 1, id="ten wait for the one that writes, and their time is worth something"),
    pytest.param(PATIENT, {}, 0, id="nobody's time is worth anything, and one writes in any case"),
    pytest.param(PATIENT, {"fan_out_wait_ms": 0}, 1, id="all ten would write"),
    pytest.param(HURRIED, {"pre_warm_usd_per_day": 0}, 0, id="off"),
    pytest.param(HURRIED, {"pre_warm_usd_per_day": 0.000001}, 0, id="the budget has no room"),
])  # fmt: skip
def test_it_is_written_where_that_pays_and_may_be_paid(klass: Json, cache: Json, expected: int) -> None:
    start_s = next_minute()
    with world(policy(start_s, klass, **cache)) as running:
        first = start_s - running.clock.start_s
        morning(running, first + 5)
        running.clock.set(first + DAY_S - 30)
        look(running).result(60)
        until(lambda: len(pings(running)) >= expected)
        assert len(pings(running)) == expected
        assert wrote(morning(running, first + DAY_S + 5)) == (0 if expected else 1)


def test_prompts_that_are_translated_are_written_as_the_provider_gets_them() -> None:
    """An app of OpenAI's SDK with a model of Anthropic's."""
    start_s = next_minute()

    def morning(at_s: float) -> list[Seen]:
        before, system = len(running.providers.seen), {"role": "system", "content": LONG}
        tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "tu"]
        running.clock.set(at_s)
        running.providers.delay_s = AT_ONCE_S  # a wait that is worth something, on a quick machine too
        for n in range(8):
            messages = [system, {"role": "user", "content": f"{at_s} {n}"}]
            body = {"model": "anthropic-model", "max_completion_tokens": 9, "tools": tools, "messages": messages, "user": "somebody"}
            assert running._one("/v1/chat/completions", "app", orjson.dumps(body)).status_code == 200
        return running.providers.seen[before:]

    with world(policy(start_s, {"value_usd_per_hour": 9_999})) as running:
        first = start_s - running.clock.start_s
        assert wrote(morning(first + 5)) == 1
        assert known(running) == 1
        running.clock.set(first + DAY_S - 30)
        look(running).result(60)
        until(lambda: len(pings(running)) == 1)
        assert wrote(pings(running)) == 1
        assert wrote(morning(first + DAY_S + 5)) == 0
        assert (pings(running)[0].body["messages"], "metadata" in pings(running)[0].body) == ([{"role": "user", "content": "."}], False)


def test_a_restart_forgets_and_learns_anew() -> None:
    """Text is held in memory alone: after a night's restart nothing is written ahead, and the calls are served as ever."""
    start_s = next_minute()
    with Clock() as clock, Providers(clock.now_s) as providers:
        first = start_s - clock.start_s
        for day, expected in ((0, [1]), (1, [1, 0])):
            with gateway(clock, providers, policy(start_s, HURRIED)) as running:
                clock.set(first + day * DAY_S - 30)
                look(running).result(60)
                counted = [wrote(morning(running, first + day * DAY_S + 5))]
                for _ in expected[1:]:
                    clock.set(first + (day + 1) * DAY_S - 30)
                    look(running).result(60)
                    counted.append(wrote(morning(running, first + (day + 1) * DAY_S + 5)))
                assert counted == expected


def test_of_two_gateways_on_one_redis_one_writes() -> None:
    start_s, redis = next_minute(), Server()
    fields = {"redis_url": redis.url, "redis_timeout_ms": 10_000}
    try:
        with world(policy(start_s, HURRIED), **fields) as one, gateway(one.clock, one.providers, policy(start_s, HURRIED), **fields) as two:
            first = start_s - one.clock.start_s
            for running in (one, two, one, two):
                morning(running, first + 5, 5)
            assert (known(one), known(two)) == (1, 1)
            one.clock.set(first + DAY_S - 30)
            for turn in [look(one), look(two)]:
                turn.result(60)
            until(lambda: len(pings(one)) > 0)
            assert wrote(morning(one, first + DAY_S + 5, 5) + morning(two, first + DAY_S + 6, 5)) == 0
            assert wrote(pings(one)) == 1
    finally:
        redis.stop()


@pytest.mark.parametrize("fields", [
    pytest.param({"thinking": {"type": "enabled", "budget_tokens": 1024}}, id="refused with thinking"),
    pytest.param({"output_config": {"format": {"type": "json_schema"}}}, id="refused with structured output"),
    pytest.param({"cache_control": {"type": "ephemeral"}}, id="the client has its own automatic mark"),
])  # fmt: skip
def test_what_the_provider_would_refuse_is_not_held(fields: Json) -> None:
    with world(policy(next_minute(), HURRIED)) as running:
        for n in range(3):
            running.send("anthropic", "app", [opening(n, **fields)], 5.0 + n)
        assert known(running) == 0


@pytest.mark.parametrize(("fields", "names", "left"), [
    pytest.param(lambda n: {}, {"tools", "system"}, LONG, id="all of it"),
    pytest.param(lambda n: {"system": f"{n} {LONG}"}, {"tools"}, None, id="the tools, where system prompts differ"),
    pytest.param(lambda n: {"system": [{"type": "text", "text": text} for text in (LONG, f"It is {n} o'clock.")]}, {"tools", "system"}, [{"type": "text", "text": LONG}], id="without the block that differs"),
    pytest.param(lambda n: {"tool_choice": {"type": "any"}, "metadata": {"user_id": f"u{n}"}}, {"tools", "system"}, LONG, id="without what is no part of it"),
])  # fmt: skip
def test_what_is_held_is_what_conversations_have_in_common(fields: Callable[[int], Json], names: set[str], left: Any) -> None:
    """And none of their words."""
    tools = [{"name": "t", "description": "word " * 2_000, "input_schema": {"type": "object"}}, {"name": "u", "input_schema": {"type": "object"}}]
    with world(policy(next_minute(), HURRIED)) as running:
        for n in range(3):
            running.send("anthropic", "app", [opening(n, tools=tools, **fields(n))], 5.0 + n)
        [body] = held(running)
        assert set(body) == {"model", "max_tokens", "messages", *names}
        assert (body["messages"], body.get("system")) == ([{"role": "user", "content": "."}], left)


def test_memory_is_bounded_and_forgets() -> None:
    start_s, most = next_minute(), 100_000
    with world(policy(start_s, HURRIED)) as running:
        async def small(gateway: Gateway) -> None:
            assert gateway.services is not None
            gateway.services.pre_warmer._most = most

        running.inside(small).result(60)
        for n in range(12):
            running.send("anthropic", "app", [opening(n, system=f"{n // 2} {LONG}")], 5.0 + n)
        assert sum(len(orjson.dumps(body)) for body in held(running)) <= most
        assert known(running) == 3
        running.clock.set(9 * DAY_S)
        look(running).result(60)
        assert known(running) == 0


def test_prompts_of_subscription_clients_are_not_held() -> None:
    with world(policy(next_minute(), HURRIED)) as running:
        headers = {"authorization": f"Bearer {running.key}", "anthropic-beta": "oauth-2025-04-20", "content-type": "application/json"}
        for n in range(3):
            httpx.post(running.url + "/v1/messages", content=opening(n), headers=headers, trust_env=False, timeout=60, verify=False).raise_for_status()
        assert known(running) == 0


def test_a_gateway_that_drains_writes_nothing_ahead() -> None:
    start_s = next_minute()
    with world(policy(start_s, HURRIED)) as running:
        first = start_s - running.clock.start_s
        morning(running, first + 5)

        async def drain(gateway: Gateway) -> None:
            gateway.drain()

        running.inside(drain).result(60)
        running.clock.set(first + DAY_S - 30)
        assert look(running).result(60) == 0
        assert pings(running) == []
