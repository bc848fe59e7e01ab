"""What the planner asks of a provider: never more than it takes, never against the client, and nothing else is changed."""
from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.providers import prompt
from benchmarks.providers.rules import PROVIDERS
from gateway import dialects
from gateway.dialects import splice
from gateway.planner import Asker, Backend, Page, Planned, Planner
from gateway.planner.caches import rules_of
from gateway.prefix.chain import chain

RATES = {
    "anthropic": {"input": 300, "cached": 30, "write_5m": 375, "write_1h": 600}, "openai": {"input": 400, "cached": 40, "write_30m": 500, "write_12h": 1000},
    "qwen": {"input": 250, "cached": 50}, "moonshot": {"input": 300, "cached": 30, "write_5m": 300, "write_1h": 600},
}  # fmt: skip
EXPLICIT = {"input": 250, "cached": 25, "write_5m": 312}
MODELS = {"anthropic": "claude-sonnet-4-6", "openai": "gpt-5.6-sol", "qwen": "qwen3.7-max", "moonshot": "kimi-k3"}
ASKER = Asker("team", "client")
LONG = "toll road " * 600
Json = dict[str, Any]


def planner() -> Planner:
    return Planner(lambda provider, model, tier: EXPLICIT if tier == "explicit" else RATES.get(provider))


def page(body: bytes, dialect: str) -> Page:
    sketch = dialects.read(dialect, body)
    parts = sketch.parts
    links = chain("team", sketch.model, parts)
    return Page(dialect=dialect, body=body, spans=sketch.spans, parts=parts, keys=links.keys, ends=links.ends, root="t m")


def dialect_of(provider: str) -> str:
    return "anthropic_messages" if provider == "anthropic" else "openai_chat"


def plan(one: Planner, body: Json | bytes, provider: str = "anthropic", at_s: float = 0.0, model: str | None = None) -> tuple[Json, Planned | None]:
    """The request as it would go out, and the plan."""
    model = model or MODELS[provider]
    raw = body if isinstance(body, bytes) else orjson.dumps({"model": model, "max_tokens": 9, **body})
    found = one.plan(page(raw, dialect_of(provider)), ASKER, Backend(provider, model, None, provider), int(at_s * 1e6))
    if found is None:
        return orjson.loads(raw), None
    fields = {name: msgspec.json.encode(value) for name, value in found.fields.items()}
    return orjson.loads(splice.change(raw, splice.spans(raw), fields)), found


def marks(body: Json) -> list[str]:
    """Lifetimes of all marks in rendered order, as the provider finds them; raises what it would refuse."""
    rendered = prompt.anthropic(body) if "max_tokens" in body and body["model"].startswith("claude") else prompt.openai(body)
    return [block.mark for block in rendered.blocks if block.mark is not None]


def turns(count: int, system: str = LONG) -> Json:
    talk = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "words " * 50} for n in range(2 * count + 1)]
    return {"tools": [{"name": name, "input_schema": {"type": "object"}} for name in "tu"], "system": system, "messages": talk}


def test_a_conversation_is_marked_where_it_will_be_read() -> None:
    """Tools and system, and the end; later the place that is stored, and the new end."""
    one = planner()
    body, first = plan(one, turns(0))
    assert first is not None
    assert body["system"][0]["cache_control"] == {"type": "ephemeral"}
    assert isinstance(body["messages"][-1]["content"], str), "whether it goes on is not known"
    one.learn(first, read_tokens=0, input_tokens=1_700, at_us=0)
    body, second = plan(one, turns(1), at_s=20)
    assert second is not None
    assert second.held == first.stored[-1].key
    assert "cache_control" in body["messages"][2]["content"][0]
    one.learn(second, read_tokens=1_600, input_tokens=1_900, at_us=20_000_000)
    body, third = plan(one, turns(2), at_s=40)
    assert third is not None
    assert third.held == second.stored[-1].key
    assert "cache_control" in body["messages"][2]["content"][0]
    assert "cache_control" in body["messages"][4]["content"][0]
    assert "cache_control" in body["messages"][3]["content"][0], "where another last message would part"
    body, _ = plan(planner(), turns(0) | {"tools": []})
    assert marks(body) == [], "of what is no agent's nothing is known"


def test_what_has_expired_is_not_taken_for_stored() -> None:
    one = planner()
    _, first = plan(one, turns(0))
    assert first is not None
    one.learn(first, read_tokens=0, input_tokens=1_700, at_us=0)
    _, second = plan(one, turns(1), at_s=301)
    assert second is not None
    assert second.held == 0


def test_what_the_provider_did_not_have_is_forgotten() -> None:
    one = planner()
    _, first = plan(one, turns(0))
    assert first is not None
    one.learn(first, read_tokens=0, input_tokens=1_700, at_us=0)
    _, second = plan(one, turns(1), at_s=20)
    assert second is not None
    assert second.held
    one.learn(replace(second, stored=()), read_tokens=0, input_tokens=1_800, at_us=20_000_000)
    assert not one.held.has("anthropic", second.held, 21_000_000)


def own_mark(ttl: str = "5m", **fields: Any) -> Json:
    return {**turns(1), "system": [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral", "ttl": ttl}}], **fields}


FOUR = [{"type": "text", "text": f"{n} {LONG}", "cache_control": {"type": "ephemeral"}} for n in range(4)]


@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_marks_that_a_client_leaves_free_are_used(ttl: str) -> None:
    """Its own stay as they are; no long lifetime comes after a short one, and there are never more than four."""
    body, planned = plan(planner(), own_mark(ttl))
    assert planned is not None
    assert body["system"] == own_mark(ttl)["system"]
    assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert orjson.dumps(body).count(b"cache_control") <= 4
    PROVIDERS["anthropic"].make().serve("", body, 0.0)  # refuses a wrong order


@pytest.mark.parametrize("body", [
    pytest.param({**turns(1), "system": FOUR}, id="four marks"),
    pytest.param({**turns(1), "cache_control": {"type": "ephemeral"}}, id="the automatic mark"),
])  # fmt: skip
def test_a_clients_own_marks_stay_as_they_are(body: Json) -> None:
    assert plan(planner(), body)[1] is None


@pytest.mark.parametrize(("provider", "model", "dialect"), [
    ("own", "llama-70b", "openai_chat"), ("deepseek", "deepseek-chat", "openai_chat"), ("anthropic", "claude-sonnet-4-6", "openai_chat"),
    ("groq", "gpt-oss-120b", "openai_chat"),
])  # fmt: skip
def test_where_there_is_nothing_to_plan_nothing_is(provider: str, model: str, dialect: str) -> None:
    assert rules_of(provider, model, dialect) is None


def test_below_the_minimum_nothing_is_marked() -> None:
    assert plan(planner(), {"messages": [{"role": "user", "content": "short"}]})[1] is None


def test_an_unknown_price_is_no_plan() -> None:
    one = Planner(lambda provider, model, tier: None)
    assert plan(one, turns(2))[1] is None


def test_prompts_that_never_come_again_are_soon_not_stored() -> None:
    """A hundred one-shot calls: nothing, then; at OpenAI 5.6 that has to be said, for its habit is to write each prompt."""
    for provider in ("anthropic", "openai"):
        one = planner()
        for number in range(100):
            content = f"{number} {LONG}"
            body, found = plan(one, {"messages": [{"role": "user", "content": content}]}, provider, at_s=number * 30.0)
            if found is not None:
                one.learn(found, read_tokens=0, input_tokens=1_500, at_us=int(number * 30e6))
        if provider == "anthropic":
            assert marks(body) == []
        else:
            assert body["prompt_cache_options"] == {"mode": "explicit"}
            assert marks(body) == []


def test_long_gaps_get_a_long_lifetime() -> None:
    one = planner()
    body: Json = {}
    for number in range(90):
        body, found = plan(one, turns(number % 6 + 1, f"{number // 6} {LONG * 10}"), at_s=number * 1200.0)
        if found is not None:
            one.learn(found, read_tokens=None, input_tokens=15_500, at_us=int(number * 1200e6))
    assert set(marks(body)) == {"1h"}


def test_openais_key_is_the_conversations_and_a_clients_own_stays() -> None:
    one = planner()
    first, _ = plan(one, {"messages": turns(0)["messages"]}, "openai")
    later, _ = plan(one, {"messages": turns(2)["messages"]}, "openai", at_s=60)
    assert first["prompt_cache_key"] == later["prompt_cache_key"]
    assert "team" not in first["prompt_cache_key"]
    own, _ = plan(one, {"messages": turns(0)["messages"], "prompt_cache_key": "mine"}, "openai")
    assert own["prompt_cache_key"] == "mine"


def test_kimi_is_asked_for_an_hour_only_where_that_pays() -> None:
    one = planner()
    body, _ = plan(one, {"messages": [{"role": "system", "content": LONG}, *turns(1)["messages"]]}, "moonshot")
    assert "prompt_cache_options" not in body
    for number in range(60):
        body, found = plan(one, {"messages": [*turns(number % 6 + 1)["messages"], {"role": "user", "content": LONG}]}, "moonshot",
                           at_s=1e6 + number * 1200.0)  # fmt: skip
        if found is not None:
            one.learn(found, read_tokens=None, input_tokens=2_000, at_us=int((1e6 + number * 1200.0) * 1e6))
    assert body.get("prompt_cache_options", {}).get("ttl") in (None, "1h")


@pytest.mark.parametrize(("gap_s", "lives"), [(1200.0, {"5m", "1h"}), (20.0, {"5m"})])
def test_kimi_is_asked_for_an_hour_from_a_conversations_first_call_on(gap_s: float, lives: set[str]) -> None:
    """Once it is known that hours would have paid for all calls so far; what all conversations share, the tools, counts too."""
    one, asked, firsts = planner(), list[str](), list[str]()
    for number in range(40):
        talk, turn = divmod(number, 5)
        request = {**turns(turn, ""), "tools": [{"name": "t", "description": LONG}, {"name": "u"}], "prompt": str(talk)}
        request["messages"] = [{"role": "system", "content": str(talk)}, *request["messages"]]
        body, found = plan(one, request, "moonshot", at_s=1e6 + number * gap_s)
        assert found is not None
        asked.append(body.get("prompt_cache_options", {}).get("ttl", "5m"))
        firsts += asked[-1:] if not turn else []
        one.learn(found, read_tokens=None, input_tokens=2_000, at_us=int((1e6 + number * gap_s) * 1e6))
    assert set(asked) == lives
    assert firsts[0] == "5m"
    assert firsts[-1] == ("1h" if "1h" in lives else "5m")


def test_kimi_is_asked_for_no_hour_behind_what_lives_for_minutes() -> None:
    """What stands behind a prefix is of no use once that is gone."""
    one = planner()
    rng = random.Random(1)
    asked: dict[str, set[Any]] = {"5m": set(), "1h": set()}
    for number in range(40):
        at_s = 1e6 + number * 3e4
        head = {"role": "system", "content": f"{number} {LONG}"}
        life, gap_s = "5m", 0.0
        for turn in range(8):
            body, found = plan(one, {**turns(turn, ""), "messages": [head, *turns(turn)["messages"]]}, "moonshot", at_s=at_s)
            assert found is not None
            one.learn(found, read_tokens=None, input_tokens=2_000, at_us=int(at_s * 1e6))
            ttl = body.get("prompt_cache_options", {}).get("ttl", "5m")
            if not turn or (gap_s > 300 and life == "5m"):
                life = ttl  # nothing is there, or all was lost, and is written anew
            else:
                asked[life].add(ttl)
            gap_s = rng.choice([20.0, 60.0, 1500.0])
            at_s += gap_s
    assert asked["5m"] == {"5m"}
    assert "1h" in asked["1h"]


def test_what_a_call_is_writing_right_now_is_read_and_not_left_to_the_automatic_cache() -> None:
    """Qwen: calls that come together with one that marks its prompt have to mark it too, or they read nothing."""
    one = planner()
    for number in range(60):  # a client whose conversations go on for long
        talk = {"messages": [{"role": "system", "content": f"{number // 12} {LONG}"}, *turns(number % 12)["messages"]]}
        _, found = plan(one, talk, "qwen", at_s=number * 5.0)
        if found is not None:
            one.learn(found, read_tokens=None, input_tokens=2_000, at_us=int(number * 5e6))
    burst = [{"messages": [{"role": "system", "content": "new " + LONG}, {"role": "user", "content": "task " * 100}, {"role": "user", "content": f"{n}"}]} for n in range(2)]
    first, leading = plan(one, burst[0], "qwen", at_s=400.0)
    assert leading is not None
    assert marks(first)
    leader = one.lead(leading, int(4e8))
    second, following = plan(one, burst[1], "qwen", at_s=400.0)
    assert following is not None
    assert marks(second)
    assert one.writer(following) is not None
    one.cohorts.end(leader)


def test_what_another_process_is_writing_is_waited_for_in_the_cache_where_it_is_written() -> None:
    """Qwen: what is heard of the first call makes the second plan otherwise, before anything of it is stored."""
    one, other = planner(), planner()
    for source in (one.writing, one.reuse, one.bets):
        source.fresh = {}
    burst = [{"messages": [{"role": "system", "content": "toll road " * 20_000}, {"role": "user", "content": f"{n}"}]} for n in range(2)]
    _, leading = plan(one, burst[0], "qwen")
    assert leading is not None
    one.lead(leading, 0)
    for told, heard in ((one.writing, other.writing), (one.reuse, other.reuse), (one.bets, other.bets)):
        heard.take(list((told.fresh or {}).items()))
    _, following = plan(other, burst[1], "qwen", at_s=0.3)
    assert following is not None
    assert (following.pool, leading.stored[-2] in following.stored) == (leading.pool, True)


words = st.text(min_size=1, max_size=8).map(lambda text: text * 700)
parts = st.lists(st.one_of(
    words.map(lambda text: {"type": "text", "text": text}), st.just({"type": "text", "text": ""}), st.just({"type": "thinking", "thinking": "x", "signature": "y"}),
    st.just({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}), st.just({"type": "tool_result", "tool_use_id": "a", "content": "ok"}),
), min_size=1, max_size=4)  # fmt: skip
messages = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": st.one_of(words, st.just(""), st.none(), parts)}),
                    min_size=1, max_size=8)  # fmt: skip
bodies = st.fixed_dictionaries(
    {"messages": messages},
    optional={"system": st.one_of(words, parts), "tools": st.lists(st.fixed_dictionaries({"name": st.text(min_size=1, max_size=5)}), max_size=3)},
)


def unmarked(value: Any) -> Any:
    """What the model is given: marks taken out, a string and a list of one text block the same."""
    if isinstance(value, dict):
        return {key: [{"type": "text", "text": item}] if key in ("content", "system") and isinstance(item, str) and item else unmarked(item)
                for key, item in value.items() if key not in ("cache_control", "prompt_cache_breakpoint", "prompt_cache_options", "prompt_cache_key")}  # fmt: skip
    return [unmarked(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=50, deadline=None)
@given(st.lists(bodies, min_size=1, max_size=3), st.sampled_from(sorted(MODELS)), st.integers(0, 2), st.booleans())
def test_whatever_comes_the_provider_takes_it_and_the_model_sees_the_same(several: list[Json], provider: str, indent: int, ascii_: bool) -> None:
    """No more marks than it takes, long lifetimes first, no mark where none may be; without the marks the request is as it was."""
    one, cache = planner(), PROVIDERS[{"openai": "openai-5.6", "moonshot": "kimi"}.get(provider, provider)].make()
    for number, body in enumerate(several):
        raw = json.dumps({"model": MODELS[provider], "max_tokens": 9, **body}, indent=indent or None, ensure_ascii=ascii_).encode("utf-8", "replace")
        sent, found = plan(one, raw, provider, at_s=number * 100.0)
        assert unmarked(sent) == unmarked(orjson.loads(raw))
        used = cache.serve("a", sent, number * 100.0)  # raises Refused
        used.begun(number * 100.0)
        assert len(marks(sent)) <= 4
        if found is not None:
            one.learn(found, read_tokens=used.read, input_tokens=used.total, at_us=int(number * 100e6))
