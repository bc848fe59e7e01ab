"""Real gateway, simulated Gemini: a beginning that is computed anew again and again is stored, read, booked, and let go."""
from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.providers.objects import ObjectStore
from benchmarks.providers.server import Providers
from tests.build import PLAIN, Gateway, write_policy
from tests.upstream import until

Json = dict[str, Any]
RULES = "toll road " * 4_000
TOOL: Json = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}
MISSES = 7
"""As many as make an object of that model worth its rent."""
STORES = {**PLAIN, "cache": {"hold_out": 0, "store_usd_per_day": 1}}


class World:
    """A provider whose clock goes as the test says; its own cache has forgotten everything at each call."""

    def __init__(self, folder: Path, policy: Json = STORES) -> None:
        self.now_s = time.time()
        self.providers = Providers(lambda: self.now_s)
        self.providers.__enter__()
        url = self.providers.url("gemini").removesuffix("/v1") + "/v1beta/openai"
        backends = {"google": {"dialect": "openai", "url": url, "key": "env:PROVIDER_KEY", "provider": "google", "models": {"g": "gemini-3.8-flash"}}}
        self.gateway = Gateway(folder, {"backends": backends}, {"app": policy})

    def ask(self, number: int, name: str = "a", **fields: Any) -> tuple[Json, Json]:
        """What the provider saw, and the booked call."""
        self.now_s += 400.0
        system = {"role": "system", "content": name + RULES}
        body = {"model": "g", "tools": [TOOL], "messages": [system, {"role": "user", "content": f"question {number}"}], **fields}
        answer = self.gateway.chat(body, "app")
        assert answer.status_code == 200, answer.text
        return dict(self.providers.seen[-1].body), self.gateway.call(answer.headers["x-tollway-call"])

    def close(self) -> None:
        self.gateway.close()
        self.providers.__exit__()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.close()


def stored(world: World) -> list[Json]:
    rows: list[Json] = world.gateway.ask("GET", "/tollway/usage?by=client").json()["rows"]
    return [row for row in rows if row["client"] == "stored_prefix"]


def test_a_beginning_that_is_missed_again_and_again_is_stored_and_read(world: World) -> None:
    """Tools and system prompt travel no more; making it and its storage are entries of their own, at the book's prices."""
    for n in range(MISSES):
        sent, call = world.ask(n)
        assert "extra_body" not in sent
        assert call["attempts"][0]["tokens"]["cache_read"] == 0
    until(lambda: world.providers.objects.objects, "an object")
    [found] = world.providers.objects.objects.values()
    until(lambda: stored(world), "its entries")
    sent, call = world.ask(MISSES)
    assert sent["extra_body"] == {"google": {"cached_content": found.name}}
    assert ("tools" in sent, [message["role"] for message in sent["messages"]]) == (False, ["user"])
    assert call["attempts"][0]["tokens"]["cache_read"] == found.tokens
    assert [receipt["after"] for receipt in call["receipts"] if receipt["pass"] == "cache_object"] == [found.name]
    [row] = stored(world)
    hours = -(-found.tokens * 900 // 3600)
    assert Decimal(row["cost_usd"]) == Decimal(found.tokens) * Decimal("0.75e-6") + Decimal(hours) * Decimal("0.5e-6")
    assert row["attempts"] == 2


def test_an_object_that_is_gone_costs_a_second_try_and_no_error(world: World) -> None:
    for n in range(MISSES):
        world.ask(n)
    until(lambda: stored(world), "an object")
    for each in world.providers.objects.objects.values():
        each.until_s = 0.0
    sent, call = world.ask(MISSES)
    assert "extra_body" not in sent
    assert [(attempt["status"], attempt["http_status"]) for attempt in call["attempts"]] == [("failed", 400), ("ok", 200)]


@pytest.mark.parametrize("fields", [
    {"tool_choice": "required"}, {"messages": [{"role": "user", "content": RULES}]},
    {"messages": [{"role": "system", "content": RULES}, {"role": "user", "content": "x"}, {"role": "system", "content": "late"}, {"role": "user", "content": "y"}]},
])  # fmt: skip
def test_what_may_not_stand_beside_an_object_travels_as_it_came(world: World, fields: Json) -> None:
    for n in range(MISSES + 1):
        sent, _ = world.ask(n, **fields)
        assert "extra_body" not in sent
    time.sleep(1.5)  # a turn of the one who stores
    assert not world.providers.objects.objects


@pytest.mark.parametrize("cache", [{"hold_out": 0}, {"hold_out": 0, "store_usd_per_day": 0.000001}])
def test_nothing_is_stored_that_the_policy_does_not_pay_for(tmp_path: Path, cache: Json) -> None:
    """Off by default, and within a budget of its own."""
    world = World(tmp_path, {**PLAIN, "cache": cache})
    for n in range(MISSES + 1):
        world.ask(n)
    time.sleep(1.5)
    assert not world.providers.objects.objects
    assert not stored(world)
    world.close()


def test_it_is_extended_while_it_is_worth_it_and_deleted_when_nobody_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stretch of storage is booked as it is granted."""
    monkeypatch.setattr("gateway.storing.LIFE_S", 60.5)  # so that it is due at once
    world = World(tmp_path)
    for n in range(MISSES):
        world.ask(n)
    until(lambda: world.providers.objects.objects, "an object")
    [found] = world.providers.objects.objects.values()
    granted_s = found.until_s
    until(lambda: found.until_s > granted_s, "more time")
    until(lambda: stored(world)[0]["attempts"] >= 3, "its entry")
    write_policy(tmp_path, "app", {**PLAIN, "cache": {"hold_out": 0}})
    until(lambda: found.until_s <= world.now_s, "it to be deleted", 30)
    sent, _ = world.ask(MISSES)
    assert "extra_body" not in sent
    world.close()


def test_a_provider_that_says_no_costs_nothing(world: World) -> None:
    """The entry says that it was tried, and calls go on as they came."""
    world.providers.objects = ObjectStore(minimum=10**9)
    for n in range(MISSES):
        world.ask(n)
    until(lambda: stored(world), "an entry")
    assert Decimal(stored(world)[0]["cost_usd"]) == 0
    sent, _ = world.ask(MISSES)
    assert "extra_body" not in sent
