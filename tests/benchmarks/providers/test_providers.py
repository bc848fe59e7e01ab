"""The simulated providers keep the providers' published rules (docs/caching.md), one rule a test."""
from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.providers import prompt
from benchmarks.providers.objects import ObjectStore
from benchmarks.providers.prompt import Refused
from benchmarks.providers.rules import PROVIDERS
from benchmarks.providers.server import Providers

LONG = "toll road " * 600
"""1,500 tokens."""
Json = dict[str, Any]


class World:
    """One provider on a clock that a test moves."""

    def __init__(self, name: str) -> None:
        self.cache, self.model, self.at_s = PROVIDERS[name].make(), PROVIDERS[name].model, 1_000.0

    def ask(self, body: Json, domain: str = "a", *, begun: bool = True) -> tuple[int, dict[str, int], int]:
        """(read, written, uncached), no written lifetime of zero tokens."""
        used = self.cache.serve(domain, {"model": self.model, **body}, self.at_s)
        if begun:
            used.begun(self.at_s)
        return used.read, {ttl: n for ttl, n in used.written.items() if n}, used.uncached


def mark(ttl: str | None = None) -> Json:
    return {"cache_control": {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}}


def text(words: str, **fields: Any) -> Json:
    return {"type": "text", "text": words, **fields}


def user(*parts: Json | str) -> Json:
    return {"role": "user", "content": [text(part) if isinstance(part, str) else part for part in parts]}


def test_a_marked_prefix_is_written_once_and_then_read() -> None:
    world = World("anthropic")
    body = {"system": [text(LONG, **mark())], "messages": [user("one")]}
    read, written, uncached = world.ask(body)
    assert (read, uncached > 0) == (0, True)
    assert world.ask({**body, "messages": [user("two")]})[:2] == (written["5m"], {})


@pytest.mark.parametrize(("wait_s", "hit"), [(299, True), (301, False)])
def test_a_hit_starts_the_lifetime_again(wait_s: float, hit: bool) -> None:
    world = World("anthropic")
    body = {"system": [text(LONG, **mark())], "messages": [user("one")]}
    world.ask(body)
    world.at_s += 200
    world.ask(body)
    world.at_s += wait_s
    assert bool(world.ask(body)[0]) is hit


def test_an_hour_lasts_and_is_billed_by_position() -> None:
    """Up to the last long mark a long write, the rest a short one."""
    world = World("anthropic")
    body = {"system": [text(LONG, **mark("1h"))], "messages": [user(text(LONG, **mark()))]}
    _, written, uncached = world.ask(body)
    assert set(written) == {"1h", "5m"}
    assert uncached == 0
    world.at_s += 3000
    assert world.ask(body)[:2] == (written["1h"], {"5m": written["5m"]})


@pytest.mark.parametrize("body", [
    pytest.param({"messages": [user(*[text(str(n), **mark()) for n in range(5)])]}, id="five marks"),
    pytest.param({"messages": [user(text("a", **mark("5m")), text("b", **mark("1h")))]}, id="a long lifetime behind a short one"),
    pytest.param({"messages": [user(text("a", **mark("2h")))]}, id="an unknown lifetime"),
    pytest.param({"messages": [user(text("", **mark()))]}, id="an empty marked block"),
    pytest.param({"cache_control": {"type": "ephemeral"}, "messages": [user(*[text(str(n), **mark()) for n in range(4)], "end")]},
                 id="four marks and the automatic one"),
])  # fmt: skip
def test_what_anthropic_refuses(body: Json) -> None:
    with pytest.raises(Refused):
        World("anthropic").ask(body)


@pytest.mark.parametrize(("added", "hit"), [(19, True), (20, False)])
def test_a_mark_looks_back_twenty_positions(added: int, hit: bool) -> None:
    world = World("anthropic")
    world.ask({"messages": [user(text(LONG, **mark()))]})
    more = [text(f"{n}") for n in range(added)]
    more[-1] = text("last", **mark())
    assert bool(world.ask({"messages": [user(LONG, *more)]})[0]) is hit


def test_a_run_of_tool_calls_is_one_position() -> None:
    world = World("anthropic")
    world.ask({"messages": [user(text(LONG, **mark()))]})
    calls = [{"type": "tool_use", "id": str(n), "name": "t", "input": {}} for n in range(30)]
    results = [{"type": "tool_result", "tool_use_id": str(n), "content": "ok"} for n in range(30)]
    results[-1] |= mark()
    assert world.ask({"messages": [user(LONG), {"role": "assistant", "content": calls}, user(*results)]})[0] > 1_400


def test_parallel_first_calls_all_pay_the_write() -> None:
    world = World("anthropic")
    body = {"system": [text(LONG, **mark())], "messages": [user("one")]}
    assert [world.ask(body, begun=False)[0] for _ in range(3)] == [0, 0, 0]


def test_below_the_minimum_nothing_happens() -> None:
    world = World("anthropic")
    body = {"messages": [user(text("x" * 3600, **mark()))]}
    assert world.ask(body)[1] == {}
    world.model = "claude-opus-5-5"
    assert world.ask(body)[1]["5m"] > 900


@pytest.mark.parametrize(("change", "share"), [
    ({"tool_choice": {"type": "any"}}, "system"), ({"thinking": {"type": "enabled"}}, "system"), ({"speed": "fast"}, "tools"),
    ({"output_config": {"format": {"type": "json"}}}, ""), ({"model": "claude-sonnet-4-5"}, ""),
    ({"output_config": {"effort": "high"}}, "messages"),
])  # fmt: skip
def test_what_invalidates_which_part(change: Json, share: str) -> None:
    """A change of settings keeps what stands before the part that it belongs to."""
    world = World("anthropic")
    body = {"tools": [{"name": "t", "description": LONG, **mark()}], "system": [text(LONG, **mark())],
            "messages": [user(text(LONG, **mark()))]}  # fmt: skip
    world.ask(body)
    expected = {"": 0, "tools": 1, "system": 2, "messages": 3}[share]
    assert round(world.ask({**body, **change})[0] / 1_510) == expected


def test_domains_share_nothing() -> None:
    world = World("anthropic")
    body = {"system": [text(LONG, **mark())], "messages": [user("one")]}
    world.ask(body)
    assert world.ask(body, "b")[0] == 0


def chat(*texts: str, **fields: Any) -> Json:
    return {"messages": [{"role": ("user", "assistant")[n % 2], "content": words} for n, words in enumerate(texts)], **fields}


def test_openai_counts_in_steps_of_128_from_1024_on() -> None:
    world = World("openai")
    world.ask(chat(LONG))
    read, written, _ = world.ask(chat(LONG, "more"))
    assert (read % 128, read >= 1024, written) == (0, True, {})
    assert world.ask(chat("short"))[0] == 0


def test_openai_overflows_at_fifteen_a_minute_and_keys_spread() -> None:
    world = World("openai")
    assert sum(world.ask(chat(LONG))[0] > 0 for _ in range(20)) < 19
    world = World("openai")
    reads = [world.ask(chat(LONG, prompt_cache_key=f"k{n % 2}"))[0] for n in range(20)]
    assert sum(read > 0 for read in reads) == 18


def test_openai_refuses_the_other_generations_options() -> None:
    with pytest.raises(Refused):
        World("openai").ask(chat(LONG, prompt_cache_options={"mode": "explicit"}))


def breakpoint() -> Json:
    return {"prompt_cache_breakpoint": {"mode": "explicit"}}


def test_breakpoints_are_all_that_can_be_found() -> None:
    """Implicit mode alone writes the end of each prompt; another end behind the same beginning finds nothing."""
    world = World("openai-5.6")
    assert world.ask({"messages": [user(LONG, "one")]})[1]["30m"] > 1_500
    assert world.ask({"messages": [user(LONG, "two")]})[0] == 0
    body: Json = {"messages": [user(text(LONG, **breakpoint()), "three")], "prompt_cache_options": {"mode": "explicit"}}
    written = world.ask(body)[1]["30m"]
    body["messages"] = [user(text(LONG, **breakpoint()), "four")]
    assert world.ask(body)[0] == written


def test_explicit_mode_without_marks_is_off() -> None:
    world = World("openai-5.6")
    off = {"messages": [user(LONG)], "prompt_cache_options": {"mode": "explicit"}}
    world.ask(off)
    assert world.ask(off)[:2] == (0, {})


def test_a_breakpoint_lives_half_an_hour_after_its_last_use() -> None:
    world = World("openai-5.6")
    for wait_s, hit in ((0, False), (1700, True), (1700, True), (1900, False)):
        world.at_s += wait_s
        assert bool(world.ask({"messages": [user(LONG)]})[0]) is hit


def test_only_the_last_four_breakpoints_are_written() -> None:
    world = World("openai-5.6")
    parts = [text(LONG + str(n), **breakpoint()) for n in range(6)]
    world.ask({"messages": [user(*parts)], "prompt_cache_options": {"mode": "explicit"}})
    first = {"messages": [user(parts[0])], "prompt_cache_options": {"mode": "explicit"}}
    assert world.ask(first)[0] == 0


def test_chat_has_no_twelve_hours() -> None:
    with pytest.raises(Refused):
        World("openai-5.6").ask({"messages": [user(LONG)], "prompt_cache_options": {"ttl": "12h"}})


def test_qwens_modes_exclude_each_other() -> None:
    world = World("qwen")
    world.ask({"messages": [user(LONG, "a")]})
    assert world.ask({"messages": [user(LONG, "b")]})[0] > 0
    assert world.ask({"messages": [user(text(LONG, **mark()), "b")]})[0] == 0
    assert world.ask({"messages": [user(text(LONG, **mark()), "c")]})[0] > 0


def test_kimi_writes_by_the_lifetime_that_is_asked_for() -> None:
    world = World("kimi")
    assert set(world.ask(chat(LONG))[1]) == {"5m"}
    world.at_s += 400
    assert set(world.ask(chat(LONG, prompt_cache_options={"ttl": "1h"}))[1]) == {"1h"}
    world.at_s += 3000
    read, _, uncached = world.ask(chat(LONG))
    assert (read % 256, read > 1_000, uncached < 256) == (0, True, True)


def test_geminis_objects_are_rented_until_they_expire() -> None:
    store = ObjectStore()
    made = store.create("gemini-2.5-flash", 10_000, 1800, 0)
    assert store.get(made.name, "gemini-2.5-flash", 1799) is made
    assert store.rent_token_hours(9_999) == pytest.approx(5_000)
    for model, at_s in (("gemini-2.5-flash", 1800), ("gemini-2.5-pro", 10)):
        with pytest.raises(Refused):
            store.get(made.name, model, at_s)


def test_an_engine_forgets_what_was_unused_for_longest() -> None:
    world = World("engine")
    world.cache.cache.rules = type(world.cache.cache.rules)(life_s=1e9, units=16, minimum=16, capacity_tokens=2_000)  # type: ignore[attr-defined]
    world.ask(chat("a" + LONG))
    world.ask(chat("b" + LONG))
    assert world.ask(chat("b" + LONG))[0] > 1_400
    assert world.ask(chat("a" + LONG))[0] == 0


def _common(one: bytes, other: bytes) -> int:
    """Length of the common beginning."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


texts = st.lists(st.text(alphabet="ab", min_size=1, max_size=3).map(lambda seed: seed * 700), min_size=1, max_size=4)


@given(st.lists(st.tuples(texts, st.integers(0, 4), st.floats(0, 4000)), min_size=1, max_size=6), st.sampled_from(sorted(PROVIDERS)))
def test_classes_add_up_and_no_more_is_read_than_was_sent_before(calls: list[Any], name: str) -> None:
    """Whatever is asked in whatever order: no class is negative, their sum is the prompt, a read is a prefix of an earlier prompt."""
    world = World(name)
    sent: list[bytes] = []
    for parts, marked, wait_s in calls:
        world.at_s += wait_s
        place = min(marked, len(parts) - 1)
        fields: Json = {}
        if name in ("anthropic", "bedrock", "qwen"):
            fields = mark()
        elif name == "openai-5.6":
            fields = breakpoint()
        body = {"messages": [user(*[text(words, **(fields if n == place else {})) for n, words in enumerate(parts)])]}
        body["model"] = world.model
        used = world.cache.serve("a", body, world.at_s)
        used.begun(world.at_s)
        rendered = getattr(prompt, PROVIDERS[name].wire)(body)
        assert min(used.read, used.uncached, *used.written.values(), 0) >= 0
        assert used.total == rendered.tokens
        shared = max((_common(rendered.text, earlier) for earlier in sent), default=0)
        assert used.read * prompt.BYTES_PER_TOKEN <= shared
        sent.append(rendered.text)


@pytest.fixture(scope="module")
def providers() -> Iterator[Providers]:
    with Providers(lambda: 5_000.0, delay_s=0.0) as running:
        yield running


def _post(providers: Providers, name: str, path: str, body: Json) -> httpx.Response:
    headers = {"x-api-key": "a"}
    return httpx.post(providers.url(name) + path, json={"model": PROVIDERS[name].model, **body}, headers=headers, trust_env=False)


def test_over_http_a_burst_pays_and_a_follower_reads(providers: Providers) -> None:
    """Until the first answer has begun nobody reads; usage is in the provider's own form."""
    body = {"max_tokens": 5, "system": [text(LONG, **mark())], "messages": [user("one")]}
    providers.delay_s = 0.5
    with ThreadPoolExecutor(4) as pool:
        burst = list(pool.map(lambda _: _post(providers, "anthropic", "/messages", body).json()["usage"], range(4)))
    providers.delay_s = 0.0
    assert [usage["cache_read_input_tokens"] for usage in burst] == [0] * 4
    usage = _post(providers, "anthropic", "/messages", body).json()["usage"]
    assert usage["cache_read_input_tokens"] == burst[0]["cache_creation"]["ephemeral_5m_input_tokens"] > 0


def test_over_http_what_is_refused_is_an_error_of_the_dialect(providers: Providers) -> None:
    bad = _post(providers, "anthropic", "/messages", {"messages": [user(*[text(str(n), **mark()) for n in range(5)])]})
    assert (bad.status_code, bad.json()["type"]) == (400, "error")
    bad = _post(providers, "openai", "/chat/completions", chat(LONG, prompt_cache_options={}))
    assert (bad.status_code, bad.json()["error"]["type"]) == (400, "invalid_request_error")
    assert _post(providers, "anthropic", "/elsewhere", {}).status_code == 404


@pytest.mark.parametrize("name", [name for name, each in PROVIDERS.items() if each.wire == "openai"])
def test_over_http_streams_tell_usage_when_asked(providers: Providers, name: str) -> None:
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    lines = _post(providers, name, "/chat/completions", chat(LONG, **stream)).text.split("\n\n")
    assert '"usage":{' in lines[-3]
    assert lines[-2] == "data: [DONE]"


def test_pre_warming_writes_and_says_nothing(providers: Providers) -> None:
    body: Json = {"max_tokens": 0, "system": [text("w" + LONG, **mark())], "messages": [user("x")]}
    answer = _post(providers, "anthropic", "/messages", body).json()
    assert (answer["content"], answer["usage"]["output_tokens"]) == ([], 0)
    assert answer["usage"]["cache_creation_input_tokens"] > 1_000
    assert _post(providers, "anthropic", "/messages", {**body, "stream": True}).status_code == 400
