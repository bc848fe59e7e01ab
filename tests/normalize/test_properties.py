"""What must hold of every request, however odd: nothing breaks, nothing is lost, what is marked is not touched."""
from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import dialects
from gateway.core.errors import GatewayError
from gateway.normalize import LEVELS, Memory, normalize
from gateway.normalize.volatile_last import LABEL
from tests.normalize.views import run, view

LINES = st.lists(
    st.sampled_from(["Be brief.", "Current time: 10:0{0}", "Request id: r{0}", "gitStatus:", " M a.py", "", "customer {0}", "é \u2028",
                     "x-anthropic-billing-header: cch={0};", "Rule 1", "Rule 2"]), max_size=6,
).map("\n".join)  # fmt: skip
SCALAR = st.none() | st.booleans() | st.integers(-2, 2) | LINES
ODD = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["role", "content", "text", "type", "cache_control", "name", "function", "output", "call_id", "system"]), inner, max_size=4,
), max_leaves=8)  # fmt: skip
BLOCK = st.fixed_dictionaries({"type": st.just("text"), "text": LINES}, optional={"cache_control": st.just({"type": "ephemeral"})})
CONTENT = LINES | st.lists(BLOCK, min_size=1, max_size=3)
TOOL = st.fixed_dictionaries({"name": st.sampled_from("abcd"), "input_schema": st.dictionaries(st.sampled_from("xyz"), st.integers(0, 2), max_size=3)})
TALK = st.lists(CONTENT, min_size=1, max_size=4)


def request(dialect: str, system: Any, tools: Any, talk: list[Any]) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(talk)]
    if dialect == "anthropic_messages":
        return {"model": "m", "max_tokens": 1, "system": system, "tools": tools, "messages": messages}
    if dialect == "openai_responses":
        return {"model": "m", "instructions": system, "tools": tools, "input": messages}
    return {"model": "m", "tools": tools, "messages": [{"role": "system", "content": system}, *messages]}


DIALECT = st.sampled_from(dialects.TRANSLATED)


@settings(max_examples=100)
@given(DIALECT, st.sampled_from(LEVELS[1:]), st.lists(ODD, min_size=3, max_size=3), st.integers(0, 9))
def test_no_shape_makes_an_error(dialect: str, level: str, fields: list[Any], n: int) -> None:
    """Whatever a dialect lets through comes out as JSON again, the rest of it as it was, and a receipt for each change."""
    names = {"anthropic_messages": ("system", "tools", "messages"), "openai_chat": ("tools", "messages", "stop"),
             "openai_responses": ("instructions", "tools", "input")}[dialect]  # fmt: skip
    body = json.dumps({"model": "m", "max_tokens": 1, **dict(zip(names, fields, strict=True))}).replace("{0}", str(n)).encode()
    try:
        dialects.read(dialect, body)
    except GatewayError:
        return
    done = run(Memory(), body, level, dialect)
    assert json.loads(done.body).keys() == json.loads(body).keys()


@settings(max_examples=60)
@given(DIALECT, st.sampled_from(LEVELS[1:]), CONTENT, st.lists(TOOL, max_size=3, unique_by=lambda tool: tool["name"]), TALK, st.integers(0, 99))
def test_turns_of_a_conversation(dialect: str, level: str, system: Any, tools: list[Any], talk: list[Any], seed: int) -> None:
    """Turn n + 1 extends turn n whenever the client's did; sent again it is the same; marked blocks are in it as they came;
    no word is lost."""
    memory, before, random = Memory(), None, Random(seed)
    for n in range(1, len(talk) + 1, 2):
        shuffled = random.sample(tools, len(tools)) if level != "lossless" else tools
        asked = json.dumps(request(dialect, system, shuffled, talk[:n])).replace("{0}", "7").encode()
        done = run(memory, asked, level, dialect)
        assert run(memory, asked, level, dialect).body == done.body
        parts = [done.body[part.start:part.end] for part in done.parts]
        if before is not None:
            assert parts[: len(before)] == before
        before = parts
        _nothing_lost(asked, done.body, dialect)


@settings(max_examples=100)
@given(DIALECT, st.sampled_from(LEVELS[1:]), st.lists(st.integers(0, 2), min_size=4, max_size=4), st.lists(LINES, min_size=3, max_size=3))
def test_turns_extend_each_other_whenever_the_clients_do(dialect: str, level: str, which: list[int], systems: list[str]) -> None:
    """Though the system prompt changes in between, by whatever; and what the client says now stands in what goes out."""
    memory, talk = Memory(), ["one", "two", "three", "four", "five", "six", "seven"]
    clients: list[bytes] = []
    ours: list[bytes] = []
    for turn, chosen in enumerate(which):
        asked = json.dumps(request(dialect, systems[chosen], [], talk[: 2 * turn + 1])).replace("{0}", "7").encode()
        done = run(memory, asked, level, dialect)
        client = [asked[part.start : part.end] for part in view(asked, level, dialect).parts]
        sent = [done.body[part.start : part.end] for part in done.parts]
        assert client[: len(clients)] != clients or sent[: len(ours)] == ours
        clients, ours = client, sent
        assert not Counter(_words(asked, dialect)) - Counter(_words(done.body, dialect))


def _nothing_lost(asked: bytes, sent: bytes, dialect: str) -> None:
    """Marked blocks are there byte for byte, and the words are the same but for billing lines and our label."""
    for block in _blocks(json.loads(asked)):
        assert json.dumps(block).encode() in sent
    assert _words(asked, dialect) == _words(sent, dialect)


def _blocks(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [found for item in value for found in _blocks(item)]
    if not isinstance(value, dict):
        return []
    return [value] if "cache_control" in value else [found for item in value.values() for found in _blocks(item)]


def _words(body: bytes, dialect: str) -> list[str]:
    body = json.dumps({**json.loads(body), "tools": []}).encode()
    text = "\n".join(dialects.count_text(dialect, body, dialects.read(dialect, body)))
    lines = [line for line in text.replace(LABEL, "").split("\n") if "billing" not in line]
    return sorted(word for line in lines for word in line.split())


@given(st.sampled_from(LEVELS[1:]), LINES)
def test_what_went_out_goes_out_again(level: str, system: str) -> None:
    """Idempotence: the gateway behind a gateway changes nothing."""
    sent = run(Memory(), request("openai_chat", system, [], ["hi"]), level).body
    assert normalize(Memory(), view(sent, level)).body == sent
