"""Prefixes are kept from expiring where that pays, by calls of their own, within a budget of their own."""
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx
import orjson
import pytest
from msgspec.structs import replace as with_fields

from benchmarks.prefix_world import World, world
from gateway import dialects, warming
from gateway.access.keys import KeyRecord, KeyRing
from gateway.core.call import Call, Tenant
from gateway.core.errors import BadRequest
from gateway.planner import Planned
from gateway.planner.caches import rules_of
from gateway.planner.reuse import EDGES_S, Chance
from gateway.planner.values import Warm
from gateway.relay import Client
from gateway.warming import Warmer, Where, only, silent
from router_policies.globs import Glob
from router_policies.rules import Budget, Cache, Downgrade, Klass, ModelRules, Policy, Rule
from router_policies.sensitivity import classify
from router_policies.types import Ask

LONG = "toll road " * 1_500
WHERE = Where("b", "standard")
OFTEN = Chance((0.1, 0.15, 0.2, 0.25, 0.32, 0.4, 0.6, 0.8, 0.9, 0.95))
NEVER = Chance((0.4, *[0.5] * (len(EDGES_S) - 1)))
POLICY = Policy(team="t", version="v", classes={}, cache=Cache(keep_warm_usd_per_day=1.0))
Json = dict[str, Any]


def call(at_s: float = 0.0, **fields: Any) -> Call:
    body = orjson.dumps({"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], **fields})
    tenant = Tenant(team="t", project=None, key_id="k")
    return Call(id="c", dialect="anthropic_messages", tenant=tenant, sketch=dialects.read("anthropic_messages", body), body=body,
                path="/v1/messages", client="app/1", at_us=int(at_s * 1e6))  # fmt: skip


def planned(chance: Chance = OFTEN) -> Planned:
    rules = rules_of("anthropic", "claude-sonnet-4-6", "anthropic_messages")
    assert rules is not None
    return Planned(fields={}, receipts=(), pool="p", rules=rules, warm=Warm(300.0, 0.001, 0.0115, chance))


class Sent:
    """In place of the pipeline."""

    def __init__(self, status: int = 200) -> None:
        self.status, self.calls = status, list[tuple[Call, Policy]]()

    async def __call__(self, one: Call, client: Client, policy: Policy) -> None:
        self.calls.append((one, policy))
        if self.status != 200:
            raise BadRequest("no")
        await client.respond(200, (), b"{}")


def warmer(sent: Sent, policy: Policy = POLICY) -> Warmer:
    made = Warmer(lambda team: policy)
    made.serve = sent
    return made


async def test_a_ping_goes_out_shortly_before_the_end_of_each_lifetime_while_it_pays() -> None:
    sent, one = Sent(), None
    one = warmer(sent)
    one.note(call(), "s", WHERE, planned())
    at_s = [int(at) for at in range(0, 4_000, 10) if await one.turn(at * 1_000_000)]
    assert at_s[:2] == [270, 540]
    assert len(one) == 0, "in the end it is let go"
    silent, policy = sent.calls[0]
    assert orjson.loads(silent.body) == {**orjson.loads(call().body), "max_tokens": 0, "stream": False}
    assert (silent.client, silent.tags, silent.at_us) == ("keep_warm", {"tollway": "keep_warm"}, 270_000_000)
    assert [(budget.name, budget.scope, float(budget.limit_usd)) for budget in policy.budgets] == [("keep_warm", "tag:tollway", 1.0)]
    assert policy.version != POLICY.version


async def test_a_key_that_was_revoked_keeps_nothing_warm() -> None:
    sent = Sent()
    one, other = warmer(sent), warmer(sent)
    keys = KeyRing(b"pepper", [KeyRecord(id="k", team="t", digest="d", revoked_us=100_000_000)])
    one.ended = other.ended = keys.ended
    one.note(call(), "s", WHERE, planned())
    other.note(with_fields(call(), tenant=Tenant(team="t", project=None, key_id="another")), "s", WHERE, planned())
    assert (await one.turn(270_000_000), len(one), await other.turn(270_000_000)) == (0, 0, 1)


def test_what_speaks_of_the_call_alone_is_not_said_again() -> None:
    """A key against repeats would have the client's old answer given back in place of a ping."""
    headers = {"idempotency-key": "k", "x-tollway-class": "batch", "x-stainless-read-timeout": "5", "anthropic-beta": "b"}
    assert silent(with_fields(call(), headers=headers), 1, "keep_warm").headers == {"anthropic-beta": "b"}


def test_a_ping_that_a_budget_refuses_goes_nowhere_else() -> None:
    """Another lane or model would write the prompt where nobody looks for it."""
    down = Budget(name="d", limit_usd=Decimal(1), on_exhausted="downgrade", downgrade=Downgrade(model="other"))
    rules = replace(POLICY, budgets=(down,), models=ModelRules(fallbacks={"m": ("other",)}))
    ping = only(rules, WHERE, "keep_warm", 1.0)
    assert [(one.name, one.on_exhausted) for one in ping.budgets] == [("d", "reject"), ("keep_warm", "reject")]
    assert ping.models.fallbacks == {}


def test_a_ping_hurries_for_nobody() -> None:
    """A class's deadline would cut it, and a hedge write the prompt twice; the lane stays."""
    hasty = Klass(name="hasty", total_deadline_ms=5.0, hedge=True, lanes=(Glob("fast"),))
    rules = replace(POLICY, classes={"hasty": hasty}, default_class="hasty", rules=(Rule(name="r", klass=hasty, when=lambda ask: True),))
    ping = only(rules, WHERE, "keep_warm", 1.0)
    verdict = classify(ping, Ask(team="t", model="m", wished_class="hasty"))
    assert (verdict.klass.name, verdict.klass.total_deadline_ms, verdict.klass.hedge) == ("keep_warm", None, False)
    assert [lane.matches(WHERE.lane) for lane in verdict.klass.lanes] == [True]


@pytest.mark.parametrize(("body", "chance"), [
    pytest.param({}, NEVER, id="nobody will ask for it"),
    pytest.param({"thinking": {"type": "enabled", "budget_tokens": 1024}}, OFTEN, id="refused with thinking"),
    pytest.param({"tool_choice": {"type": "any"}}, OFTEN, id="refused with a forced tool"),
    pytest.param({"output_config": {"format": {"type": "json_schema"}}}, OFTEN, id="refused with structured output"),
])  # fmt: skip
async def test_where_it_is_of_no_use_nothing_is_sent(body: Json, chance: Chance) -> None:
    sent = Sent()
    one = warmer(sent)
    one.note(call(**body), "s", WHERE, planned(chance))
    assert not [at for at in range(0, 2_000, 10) if await one.turn(at * 1_000_000)]
    assert sent.calls == []


async def test_a_turn_takes_the_place_of_the_one_before_and_a_refusal_ends_it() -> None:
    sent = Sent(400)
    one = warmer(sent)
    one.note(call(), "s", WHERE, planned())
    one.note(call(100.0), "s", WHERE, planned())
    assert [at for at in range(0, 2_000, 10) if await one.turn(at * 1_000_000)] == [370]
    assert len(one) == 0


async def test_what_is_late_is_not_sent_and_a_policy_that_says_no_is_heard() -> None:
    """An expired prefix is no longer there to be kept."""
    sent = Sent()
    one = warmer(sent)
    one.note(call(), "s", WHERE, planned())
    await one.turn(400_000_000)
    off = warmer(sent, replace(POLICY, cache=Cache()))
    off.note(call(), "s", WHERE, planned())
    await off.turn(275_000_000)
    assert sent.calls == []
    assert len(one) == len(off) == 0


def test_memory_is_bounded() -> None:
    one = Warmer(lambda team: POLICY, most_bytes=1_000)
    for n in range(50):
        one.note(call(), f"s{n}", WHERE, planned())
    assert 0 < len(one) < 15


def test_a_ping_is_paid_from_the_teams_budgets_too() -> None:
    assert [budget.name for budget in only(only(POLICY, WHERE, "keep_warm", 1.0), WHERE, "keep_warm", 1.0).budgets] == ["keep_warm", "keep_warm"]


def until(holds: Callable[[], bool]) -> None:
    for _ in range(1_200):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to pass")


TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in "tu"]


def turn(number: int) -> bytes:
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "words " * 40} for n in range(2 * number + 1)]
    return orjson.dumps({"model": "anthropic-model", "max_tokens": 9, "tools": TOOLS, "system": LONG, "messages": messages})


def test_a_conversation_with_a_long_pause_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real gateway, simulated provider: without the ping the third turn would be written anew; it is an entry of its own."""
    monkeypatch.setattr(warming, "_CLEARLY", 0.0)  # a client that nothing is known of is not worth a ping beside an hour's mark
    with world({"normalize": {"level": "lossless", "hold_out": 0}, "cache": {"hold_out": 0, "keep_warm_usd_per_day": 1}}) as running:
        running.send("anthropic", "app", [turn(0)], 0.0)
        [second] = running.send("anthropic", "app", [turn(1)], 20.0)
        life_s = 300.0 if second.used is not None and second.used.written.get("5m") else 3_600.0
        running.clock.set(20.0 + 0.92 * life_s)
        until(lambda: running.providers.seen[-1].body.get("max_tokens") == 0)
        ping = running.providers.seen[-1]
        assert ping.used is not None
        assert (ping.used.read, ping.used.written) == (second.used.total if second.used else 0, {})
        [third] = running.send("anthropic", "app", [turn(2)], 20.0 + 1.6 * life_s)
        assert third.used is not None
        assert third.used.read == ping.used.read
        clients = {row["client"]: row["calls"] for row in usage(running, by="client")["rows"]}
        assert clients == {"app/1": 3, "keep_warm": 1}


def usage(running: World, **words: str) -> Json:
    headers = {"authorization": f"Bearer {running.key}"}
    answer = httpx.get(f"{running.url}/tollway/usage", params=words, headers=headers, trust_env=False, timeout=60, verify=False)
    found: Json = answer.raise_for_status().json()
    return found
