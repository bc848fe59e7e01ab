"""Equal chains up to part k mean an equal prefix up to part k, within one domain and model."""
from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import dialects
from gateway.core.part import Part
from gateway.dialects.blocks import fresh
from gateway.dialects.parts import conversation
from gateway.prefix.chain import Chain, chain

PARTS = st.lists(st.binary(max_size=8), max_size=8)


def of(parts: list[bytes], domain: str = "team", model: str = "m") -> Chain:
    return chain(domain, model, [Part(0, len(part), "messages", n, fresh(part)) for n, part in enumerate(parts)])


def sent(dialect: str, request: dict[str, object], domain: str = "team") -> Chain:
    """The chain of a request as a client sends it."""
    body = json.dumps(request).encode()
    parts = dialects.read(dialect, body).parts
    return chain(domain, "m", parts, conversation(domain, "m", body, parts).id)


@given(PARTS, PARTS)
def test_chains_agree_exactly_as_far_as_the_parts_do(one: list[bytes], two: list[bytes]) -> None:
    first, second = of(one), of(two)
    for k, (a, b) in enumerate(zip(first.keys, second.keys, strict=False)):
        assert (a == b) == (one[: k + 1] == two[: k + 1])


@given(PARTS)
def test_ends_are_lengths(parts: list[bytes]) -> None:
    assert of(parts).ends == tuple(sum(map(len, parts[: k + 1])) for k in range(len(parts)))


def test_domains_and_models_never_meet() -> None:
    """Nor do names that only look alike when they are joined."""
    chains = [of([b"x"], domain, model).keys for domain, model in [("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"), ("a", "c")]]
    assert len(set(chains)) == 5


def test_the_parts_borders_count() -> None:
    assert of([b"ab", b"c"]).keys[-1] != of([b"a", b"bc"]).keys[-1]


SYSTEM = [{"type": "text", "text": "rules"}, {"type": "text", "text": "manual"}]
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def test_markers_are_no_part_of_a_prefix() -> None:
    """A client that moves its marker on with every turn keeps its prefix."""
    plain = {"model": "m", "max_tokens": 9, "system": SYSTEM, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    marked = {**plain, "system": [SYSTEM[0], {**SYSTEM[1], **MARK}], "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **MARK}]}]}
    first = {**plain, "system": [{**MARK, **SYSTEM[0]}, {"type": "text", **MARK, "text": "manual"}]}
    chains = [sent("anthropic_messages", request) for request in (plain, marked, first)]
    assert len({(links.keys, links.ends, links.session) for links in chains}) == 1
    assert [links.marked for links in chains] == [False, True, True]


@pytest.mark.parametrize(("dialect", "request_", "fields"), [
    ("openai_chat", {"messages": [{"role": "user", "content": "x"}], "tools": [{"a": 1}], "response_format": {"type": "text"}}, ["response_format", "tools", "messages"]),
    ("anthropic_messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "system": SYSTEM, "tools": [{"a": 1}]},
     ["tools", "system", "system", "messages"]),
    ("openai_responses", {"input": "x", "instructions": "be", "tools": [{"a": 1}], "text": {"verbosity": "low"}}, ["text", "tools", "instructions", "input"]),
    ("openai_responses", {"input": [{"role": "user", "content": "x"}, {"type": "reasoning"}], "tools": None}, ["input", "input"]),
    ("openai_embeddings", {"input": ["a", "b"]}, ["input", "input"]),
])  # fmt: skip
def test_parts_stand_in_rendered_order(dialect: str, request_: dict[str, object], fields: list[str]) -> None:
    """Settings, tools, system, messages, wherever they stand in the body."""
    body = json.dumps({**request_, "model": "m"}).encode()
    parts = dialects.read(dialect, body).parts
    assert [part.field for part in parts] == fields
    for part in parts:
        json.loads(body[part.start:part.end])


def talk(*texts: object, system: str = "s") -> dict[str, object]:
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"model": "m", "messages": [{"role": "system", "content": system}, *messages]}


def test_a_conversation_keeps_its_name() -> None:
    """Through its turns, another system prompt and the forms of a text; another opening is another conversation."""
    name = sent("openai_chat", talk("hi")).session
    assert len(name) == 32
    assert sent("openai_chat", talk("hi", "yes?", "more")).session == name
    assert sent("openai_chat", talk("hi", system="it is 10:05")).session == name
    assert sent("openai_chat", talk([{"type": "text", "text": "hi"}], "yes?", "more")).session == name
    assert sent("openai_chat", talk([{"type": "text", "text": "hi", **MARK}])).session == name
    assert sent("openai_chat", talk("ho")).session != name
    assert sent("openai_chat", talk("hi"), "other").session != name
    assert of([]).session == ""


def test_dialects_see_when_a_conversation_is_under_way() -> None:
    def under_way(dialect: str, **request: object) -> tuple[int, int, bool]:
        body = json.dumps({"model": "m", "max_tokens": 1, **request}).encode()
        parts = dialects.read(dialect, body).parts
        found = conversation("t", "m", body, parts)
        return found.first, found.last, found.under_way

    user, assistant, system = ({"role": role, "content": "x"} for role in ("user", "assistant", "system"))
    assert under_way("openai_chat", messages=[system, user]) == (1, 2, False)
    assert under_way("openai_chat", messages=[system, user, user]) == (1, 3, False)
    assert under_way("openai_chat", messages=[system, user, assistant, user]) == (1, 2, True)
    assert under_way("openai_chat", messages=[system]) == (0, 0, False)
    assert under_way("openai_responses", input="x") == (0, 1, False)
    assert under_way("openai_responses", input=[user, {"type": "function_call", "call_id": "1"}]) == (0, 1, True)
    assert under_way("anthropic_messages", system="s", messages=[user, assistant]) == (1, 2, True)


def test_an_image_weighs_what_its_tokens_would() -> None:
    """Not its bytes: what is reckoned by bytes a token (places, minimums, shares) stays right for text beside it."""
    def ends(*contents: dict[str, object]) -> tuple[int, ...]:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": list(contents)}, {"role": "user", "content": "x" * 5_000}]}).encode()
        return chain("d", "m", dialects.read("openai_chat", body).parts).ends

    text, image = {"type": "text", "text": "y" * 5_000}, {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 999_978}}
    (with_image, _), (alone, _) = ends(text, image), ends(text)
    assert 6_000 < with_image - alone < 6_100
