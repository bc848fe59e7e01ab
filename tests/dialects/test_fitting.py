from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from gateway import dialects
from gateway.core.errors import UpstreamError
from gateway.dialects import fitting
from tests.dialects.play import data, sketch, wire

Json = dict[str, Any]
LONG = "mcp__" + "server_" * 12 + "__find"
TWIN = LONG + "_all"


def body(*names: str, **more: Any) -> bytes:
    return json.dumps({"model": "m", "tools": [{"type": "function", "function": {"name": name}} for name in names], **more}).encode()


def test_a_long_name_is_one_short_name_everywhere() -> None:
    """In the tools, in the conversation and in the choice; not within other text; and two that begin alike stay apart."""
    said = f'call {LONG}, "{LONG}"'
    raw = body(LONG, TWIN, "f", messages=[{"role": "user", "content": said}, {"tool_calls": [{"function": {"name": LONG}}]}], tool_choice={"function": {"name": TWIN}})
    sent = json.loads(fitting.shorten(raw, fitting.long_names(raw, 64)))
    one, other, plain = (tool["function"]["name"] for tool in sent["tools"])
    assert (len(one), len(other), plain) == (64, 64, "f")
    assert one != other
    assert one == fitting.short(LONG, 64)
    assert sent["messages"] == [{"role": "user", "content": said}, {"tool_calls": [{"function": {"name": one}}]}]
    assert sent["tool_choice"]["function"]["name"] == other


@pytest.mark.parametrize("raw", [
    body("f", "x" * 64), b'{"tools":null}', b'{"tools":[]}', b'{"tools":{"a":1}}', b'{"tools":[5]}', b'{"tools":[{"name":5},{"function":{"name":null}}]}', b"[]",
])
def test_what_fits_or_has_no_names_is_left_alone(raw: bytes) -> None:
    assert list(fitting.long_names(raw, 64)) == []


@pytest.mark.parametrize("client", dialects.TRANSLATED)
def test_a_stream_tells_the_clients_own_names(client: str) -> None:
    """On both roads, wherever the network cuts, and errors too are of the client's words."""
    names = fitting.long_names(body(LONG), 64)
    raw = wire("openai_chat/tools.sse").replace(b'"weather"', json.dumps(fitting.short(LONG, 64)).encode())
    relay = fitting.Restored(dialects.relay(client, "openai_chat", sketch(client), hide_usage=False), names)
    out = b"".join(relay.feed(raw[n:n + 7]) for n in range(0, len(raw), 7))
    assert (relay.started, relay.ended, relay.complete) == (True, True, True)
    out += relay.finish()
    assert LONG.encode() in out
    assert fitting.short(LONG, 64).encode() not in out
    assert data(out)
    assert relay.observed.usage is not None
    assert "Oslo" in relay.produced()
    assert b"no" in relay.fail(UpstreamError("no"))


def test_a_stream_that_is_cut_is_restored_too() -> None:
    relay = fitting.Restored(dialects.relay("anthropic_messages", "openai_chat", sketch("anthropic_messages"), hide_usage=False), fitting.long_names(body(LONG), 64))
    relay.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    assert b"max_tokens" in relay.cut()


@pytest.mark.parametrize(("raw", "sent"), [
    (b'{"cache_control": {"type":"ephemeral","ttl":"1h"},"a":1.0}', b'{"cache_control": {"type":"ephemeral"},"a":1.0}'),
    (b'[{"cache_control":{"ttl":"5m","type":"ephemeral"}},{"cache_control":{"type":"ephemeral"}}]', b'[{"cache_control":{"type":"ephemeral"}},{"cache_control":{"type":"ephemeral"}}]'),
    (b'{"text":"\\"cache_control\\":{\\"ttl\\":\\"1h\\"}","ttl":"1h"}', b'{"text":"\\"cache_control\\":{\\"ttl\\":\\"1h\\"}","ttl":"1h"}'),
    (b'{"cache_control":{"type":"ephemeral"}}', b'{"cache_control":{"type":"ephemeral"}}'),
])
def test_markers_lose_their_lifetime_and_nothing_else_changes(raw: bytes, sent: bytes) -> None:
    assert fitting.without_ttl(raw) == sent


OURS, THEIRS = {"type": "thinking", "thinking": 'so "then" \\ {', "signature": ""}, {"type": "thinking", "thinking": "hm", "signature": "EqQB"}
TEXT = {"type": "text", "text": '[{"type":"thinking","thinking":"x","signature":""},'}


@pytest.mark.parametrize(("content", "kept"), [
    ([OURS, TEXT], [TEXT]), ([TEXT, OURS], [TEXT]), ([OURS, OURS, TEXT], [TEXT]), ([TEXT, OURS, OURS, THEIRS], [TEXT, THEIRS]),
    ([THEIRS, OURS, TEXT], [THEIRS, TEXT]), ([dict(reversed(OURS.items())), TEXT], [TEXT]), ([THEIRS, TEXT], [THEIRS, TEXT]),
    ([OURS], [OURS]), ([{"type": "tool_use", "id": "t", "name": "f", "input": {"a": OURS, "b": 1}}], None),
])  # fmt: skip
@pytest.mark.parametrize("space", [(",", ":"), (", ", ": "), (" ,\n ", " : ")], ids=["tight", "usual", "wide"])
def test_thinking_that_nobody_signed_stays_here(content: list[Json], kept: list[Json] | None, space: tuple[str, str]) -> None:
    """Only whole blocks of a turn's content go, wherever they stand; what the provider signed, texts and tools' inputs stay."""
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    raw = json.dumps({"messages": messages}, separators=space).encode()
    found = fitting.without_unsigned(raw)
    assert json.loads(found)["messages"][1]["content"] == (content if kept is None else kept)
    assert kept not in (content, None) or found == raw


class Backend(NamedTuple):
    dialect: str
    cache_ttl: bool = True
    max_tool_name: int | None = None


MARKED = b'{"cache_control":{"type":"ephemeral","ttl":"1h"},"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":""},{"type":"text","text":"a"}]}]}'


@pytest.mark.parametrize(("client", "target", "gone"), [
    ("anthropic_messages", Backend("anthropic_messages"), b'{"type":"thinking","thinking":"","signature":""},'),
    ("anthropic_messages", Backend("openai_chat"), b""),
    ("openai_chat", Backend("openai_chat", cache_ttl=False), b',"ttl":"1h"'),
])
def test_what_a_backend_would_refuse_is_left_out(client: str, target: Backend, gone: bytes) -> None:
    """By the dialects and by what the backend is said to take, and no more than that."""
    assert fitting.accepted(MARKED, client, target) == MARKED.replace(gone, b"", 1)


@pytest.mark.parametrize(("client", "target", "long"), [
    ("openai_chat", Backend("openai_chat"), False), ("openai_chat", Backend("openai_chat", max_tool_name=64), True),
    ("openai_responses", Backend("openai_chat"), True), ("openai_chat", Backend("anthropic_messages"), False),
    ("openai_chat", Backend("anthropic_messages", max_tool_name=32), True),
])
def test_a_name_is_too_long_by_the_backend_or_by_the_api_translated_to(client: str, target: Backend, long: bool) -> None:
    assert bool(fitting.names_for(body(LONG), client, target)) == long
