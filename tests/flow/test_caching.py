"""The gateway in front of the simulated providers: what is planned is written, read and booked."""
from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.providers.rules import PROVIDERS
from benchmarks.providers.server import Providers, Seen
from tests.build import PLAIN, Gateway
from tests.upstream import until

LONG = "toll road " * 1_000
Json = dict[str, Any]
TOOLS = {
    "/v1/messages": [{"name": name, "input_schema": {"type": "object"}} for name in "tu"],
    "/v1/chat/completions": [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "tu"],
}  # fmt: skip
PATIENT = {"classes": {"patient": {"value_usd_per_hour": 0}}, "default_class": "patient"}
ALWAYS = {**PLAIN, **PATIENT, "cache": {"hold_out": 0, "fan_out_wait_ms": 120_000}}
"""Whoever waits in vain waits long: a test that rests on waiting fails by what it counts."""


@pytest.fixture(scope="module")
def providers() -> Iterator[Providers]:
    with Providers(time.time) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(providers: Providers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    backends = {
        name: {"dialect": each.wire, "url": providers.url(name), "key": "env:PROVIDER_KEY", "provider": each.priced_as or "own",
               "models": {f"{name}-model": each.model}}
        for name, each in PROVIDERS.items()
    }  # fmt: skip
    policies = {"planned": ALWAYS, "impatient": {**PLAIN, "cache": {"hold_out": 0, "fan_out_wait_ms": 0}}, "asking": {**PLAIN, "cache": {"hold_out": 0, "ask_diagnosis": True}}, "off": {**PLAIN, "cache": {"plan": False}}, "held-out": {**PLAIN, "cache": {"hold_out": 1}}}
    with Gateway(tmp_path_factory.mktemp("caching"), {"backends": backends}, policies) as running:
        yield running


def talk(name: str, turn: int, **fields: Any) -> Json:
    messages = [{"role": ("user", "assistant")[n % 2], "content": f"{name} {n} " + "words " * 40} for n in range(2 * turn + 1)]
    return {"max_tokens": 9, "messages": messages, **fields}


def ask(gateway: Gateway, providers: Providers, provider: str, body: Json, team: str = "planned", path: str = "") -> tuple[Json, Seen]:
    """The booked call, and what the provider saw; as an agent sends it, for of others nothing is hoped at first."""
    path = path or ("/v1/messages" if PROVIDERS[provider].wire == "anthropic" else "/v1/chat/completions")
    said = body.get("system") or body["messages"][0]["content"]
    client = {"user-agent": "".join([letter for letter in str(said)[:16] if letter.isalnum()])}  # one of its own for each test
    answer = gateway.chat({"model": f"{provider}-model", "tools": TOOLS[path], **body}, team, path, headers=client)
    assert answer.status_code == 200, answer.text
    return gateway.call(answer.headers["x-tollway-call"]), providers.seen[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_read_where_it_was_written(gateway: Gateway, providers: Providers, stream: bool) -> None:
    """Tools and system prompt at once, later all of the earlier turn is read; the ledger has the provider's own counts and says what was planned."""
    name, read = f"read {stream}", []
    for turn in range(3):
        call, seen = ask(gateway, providers, "anthropic", talk(name, turn, system=name + LONG, stream=stream))
        assert seen.used is not None
        tokens = call["attempts"][0]["tokens"]
        assert (tokens["cache_read"], tokens["cache_write"]["5m"]) == (seen.used.read, seen.used.written.get("5m", 0))
        read.append((seen.used.read, seen.used.total))
    assert read[0][0] == 0
    assert 0.95 * read[0][1] < read[1][0] < read[0][1]
    assert read[2][0] == read[1][1]


def test_a_chat_client_gets_anthropics_cache(gateway: Gateway, providers: Providers) -> None:
    """Translated requests are marked too."""
    for turn in range(2):
        body = talk("translated", turn)
        body["messages"].insert(0, {"role": "system", "content": "translated" + LONG})
        _, seen = ask(gateway, providers, "anthropic", body, path="/v1/chat/completions")
    assert seen.used is not None
    assert seen.used.read > 2_000


@pytest.mark.parametrize("team", ["off", "held-out"])
def test_who_does_not_want_it_gets_nothing(gateway: Gateway, providers: Providers, team: str) -> None:
    _, seen = ask(gateway, providers, "anthropic", talk(team, 1, system=LONG), team)
    assert seen.used is not None
    assert not seen.used.written
    assert "cache_control" not in str(seen.body)


def test_openai_gets_a_key_and_one_shots_are_not_paid_for(gateway: Gateway, providers: Providers) -> None:
    """At 5.6 a burst of prompts that never come again costs a quarter more each until that is noticed; the key is there at once."""
    for provider in ("openai", "openai-5.6"):
        body = talk("key", 0)
        body["messages"].insert(0, {"role": "system", "content": LONG})
        _, seen = ask(gateway, providers, provider, body)
        assert seen.body["prompt_cache_key"].startswith("tw-")


def test_a_prompt_that_no_cache_takes_travels_as_it_came(gateway: Gateway, providers: Providers) -> None:
    """A hundred bytes are not a thousand tokens."""
    body = {**talk("short", 0), "messages": [{"role": "user", "content": "hello"}]}
    _, seen = ask(gateway, providers, "openai", body)
    assert "prompt_cache_key" not in seen.body


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_every_provider_takes_what_is_planned(gateway: Gateway, providers: Providers, provider: str) -> None:
    """Three turns with tools, and no request is refused."""
    for turn in range(3):
        body = talk(provider, turn)
        if PROVIDERS[provider].wire == "anthropic":
            body["system"] = provider + LONG
        else:
            body["messages"].insert(0, {"role": "system", "content": provider + LONG})
        _, seen = ask(gateway, providers, provider, body)
    assert seen.used is not None
    assert seen.used.read > 2_000


def test_receipts_say_where_marks_stand(gateway: Gateway, providers: Providers) -> None:
    call, _ = ask(gateway, providers, "anthropic", talk("receipts", 0, system="receipts" + LONG))
    told = [(receipt["pass"], receipt["place"], receipt["after"]) for receipt in call["receipts"]]
    assert told == [("cache_mark", "/system", "5m")]


def burst(gateway: Gateway, providers: Providers, provider: str, bodies: list[Json], team: str = "planned", delay_s: float = 0.5) -> list[Seen]:
    """All at once; answers begin after a while."""
    before, providers.delay_s = len(providers.seen), delay_s
    try:
        with ThreadPoolExecutor(len(bodies)) as pool:
            path = "/v1/messages" if PROVIDERS[provider].wire == "anthropic" else "/v1/chat/completions"
            answers = list(pool.map(lambda body: gateway.chat({"model": f"{provider}-model", **body}, team, path), bodies))
    finally:
        providers.delay_s = 0.0
    assert [answer.status_code for answer in answers] == [200] * len(bodies)
    return providers.seen[before:]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", ["anthropic", "openai-5.6", "openai", "kimi", "qwen", "gemini"])
def test_ten_calls_with_a_cold_prefix_in_common_pay_for_it_once(gateway: Gateway, providers: Providers, provider: str, stream: bool) -> None:
    """50,000 tokens: one write, nine reads."""
    prefix = f"{provider} {stream} " + "toll road " * 20_000
    shared: Json = {"max_tokens": 9, "stream": stream}
    system = {"system": prefix} if provider == "anthropic" else {}
    first = [] if system else [{"role": "system", "content": prefix}]
    gateway.key("planned")
    bodies = [{**shared, **system, "messages": [*first, {"role": "user", "content": f"question {n}"}]} for n in range(10)]
    seen = burst(gateway, providers, provider, bodies)
    read = [each.used.read > 49_000 for each in seen if each.used is not None]
    assert sorted(read) == [False] + [True] * 9


def test_nobody_waits_where_the_policy_says_so(gateway: Gateway, providers: Providers) -> None:
    bodies = [{"max_tokens": 9, "system": "impatient" + LONG, "messages": [{"role": "user", "content": f"question {n}"}]} for n in range(4)]
    gateway.key("impatient")
    seen = burst(gateway, providers, "anthropic", bodies, "impatient", delay_s=4.0)     # all come before the first is answered
    assert [each.used.read for each in seen if each.used is not None] == [0] * 4


def test_a_conversation_stays_with_the_account_that_has_its_prefix(providers: Providers, tmp_path: Path) -> None:
    """Two keys of one provider are two caches: turns go where the first went, and many conversations use both."""
    each = PROVIDERS["anthropic"]
    (tmp_path / "second").write_text("sk-second")
    accounts = {"first": {"key": "env:PROVIDER_KEY"}, "second": {"key": "file:second"}}
    backend = {"dialect": each.wire, "url": providers.url("anthropic"), "provider": each.priced_as, "accounts": accounts,
               "models": {"anthropic-model": each.model}}  # fmt: skip
    used: dict[str, set[str]] = {}
    with Gateway(tmp_path, {"backends": {"claude": backend}}, {"planned": ALWAYS}) as running:
        for turn in range(3):
            for n in range(12):
                tools = [{"name": f"{name}{n}", "input_schema": {"type": "object"}} for name in "tu"]
                call, seen = ask(running, providers, "anthropic", talk(f"account {n}", turn, system=f"{n} {LONG}", tools=tools))
                assert seen.used is not None
                assert bool(seen.used.read) == bool(turn)
                used.setdefault(f"{n}", set()).add(call["attempts"][0]["backend"])
    assert all(len(backends) == 1 for backends in used.values())
    assert set.union(*used.values()) == {"claude-first", "claude-second"}


@pytest.mark.parametrize("stream", [False, True])
def test_the_provider_is_asked_why_it_missed_where_the_policy_says_so(gateway: Gateway, providers: Providers, stream: bool) -> None:
    """Its word stands beside ours, and who does not ask gets none."""
    name = f"diagnosis {stream}"
    _, seen = ask(gateway, providers, "anthropic", talk(name, 0, system=f"{name} {LONG}", stream=stream), "asking")
    assert seen.body["diagnostics"] == {"previous_message_id": None}
    call, seen = ask(gateway, providers, "anthropic", talk(name, 1, system=f"{name} changed {LONG}", stream=stream), "asking")
    assert seen.body["diagnostics"]["previous_message_id"].startswith("sim-")
    until(lambda: gateway.call(call["id"])["prefix"]["miss"], "an explanation")
    miss = gateway.call(call["id"])["prefix"]["miss"]
    assert seen.used is not None
    assert miss["provider"] == {"reason": "system_changed", "tokens": seen.used.total, "agrees": True}
    _, seen = ask(gateway, providers, "anthropic", talk(name, 1, system=f"{name} {LONG}"))
    assert "diagnostics" not in seen.body
