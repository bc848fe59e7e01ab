"""Files in prompts, between all pairs of dialects."""
from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from gateway import dialects
from gateway.core.errors import BadRequest

PDF = base64.b64encode(b"%PDF-1.7").decode()
DATA, LINK = f"data:application/pdf;base64,{PDF}", "https://example.com/a.pdf"
WHERE = {"openai_chat": "messages", "anthropic_messages": "messages", "openai_responses": "input"}
HEAD = {"openai_chat": {"model": "m"}, "anthropic_messages": {"model": "m", "max_tokens": 9}, "openai_responses": {"model": "m"}}
BLOCK = {
    "openai_chat": {"type": "file", "file": {"filename": "a.pdf", "file_data": DATA}},
    "anthropic_messages": {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}, "title": "a.pdf"},
    "openai_responses": {"type": "input_file", "filename": "a.pdf", "file_data": DATA},
}
LINKED = {
    "anthropic_messages": {"type": "document", "source": {"type": "url", "url": LINK}},
    "openai_responses": {"type": "input_file", "file_url": LINK},
}


def sent(client: str, upstream: str, *blocks: dict[str, Any], role: str = "user", **fields: Any) -> Any:
    """What a message of these blocks becomes."""
    body = orjson.dumps({**HEAD[client], WHERE[client]: [{"role": role, "content": list(blocks)}], **fields})
    out = dialects.request(client, upstream, body, dialects.read(client, body), model="m", set_fields={}, ask_usage=False)
    return orjson.loads(out)[WHERE[upstream]]


def pairs(blocks: dict[str, Any]) -> list[tuple[str, str]]:
    return [(a, b) for a in blocks for b in blocks if a != b]


@pytest.mark.parametrize(("client", "upstream"), pairs(BLOCK))
def test_an_embedded_file_arrives(client: str, upstream: str) -> None:
    """With its bytes and its name."""
    assert sent(client, upstream, BLOCK[client])[0]["content"] == [BLOCK[upstream]]


@pytest.mark.parametrize(("client", "upstream"), pairs(LINKED))
def test_an_address_arrives_where_there_is_a_word_for_it(client: str, upstream: str) -> None:
    assert sent(client, upstream, LINKED[client])[0]["content"] == [LINKED[upstream]]


@pytest.mark.parametrize("client", LINKED)
def test_an_address_is_refused_where_there_is_none(client: str) -> None:
    with pytest.raises(BadRequest, match="a file by its address"):
        sent(client, "openai_chat", LINKED[client])


def test_a_nameless_file_gets_the_name_that_openai_wants() -> None:
    block = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}
    assert sent("anthropic_messages", "openai_responses", block)[0]["content"][0]["filename"] == "document.pdf"


def test_text_is_text() -> None:
    """What Anthropic takes as a document of plain text or of blocks: title, context and words arrive, with the cache marker."""
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}, "title": "T", "context": "C"}
    blocks = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "one"}]}, "citations": {"enabled": False}}
    content = sent("anthropic_messages", "openai_responses", plain, blocks)[0]["content"]
    assert [part["text"] for part in content] == ["C", "T", "words", "one"]
    file = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64," + base64.b64encode("é".encode()).decode()}
    assert sent("openai_responses", "anthropic_messages", file)[0]["content"] == [
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "é"}, "title": "a.txt"}]


@pytest.mark.parametrize(("upstream", "found"), [
    ("openai_chat", [{"role": "tool", "tool_call_id": "t", "content": "read"}, {"role": "user", "content": [BLOCK["openai_chat"]]}]),
    ("openai_responses", [{"type": "function_call_output", "call_id": "t", "output": [{"type": "input_text", "text": "read"}, BLOCK["openai_responses"]]}]),
])
def test_a_file_that_a_tool_shows_arrives(upstream: str, found: Any) -> None:
    """As coding clients do when they read a PDF."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "read"}, BLOCK["anthropic_messages"]]}
    assert sent("anthropic_messages", upstream, result) == found


@pytest.mark.parametrize(("client", "block", "param"), [
    ("openai_chat", {"type": "file", "file": {"file_id": "file-1"}}, "messages[0].content[0]"),
    ("openai_responses", {"type": "input_file", "file_id": "file-1"}, "input[0].content[0]"),
    ("openai_responses", {"type": "input_file", "file_data": PDF}, "input[0].content[0]"),
    ("openai_chat", {"type": "file", "file": {"file_data": "data:application/zip;base64,UEs="}}, "messages"),
    ("openai_chat", {"type": "file", "file": {"file_data": "data:application/pdf,x"}}, "messages"),
    ("openai_chat", {"type": "file", "file": {"file_data": "data:text/plain;base64,/w=="}}, None),
    ("openai_chat", {"type": "file"}, None), ("openai_chat", {"type": "file", "file": {"file_data": 5}}, None),
])
def test_what_is_no_file_for_anthropic_is_refused(client: str, block: dict[str, Any], param: str | None) -> None:
    """Stored ones are there for one provider only; the rest cannot be read."""
    with pytest.raises(BadRequest) as caught:
        sent(client, "anthropic_messages", block)
    assert caught.value.param == param


@pytest.mark.parametrize(("block", "param"), [
    ({"type": "document", "source": {"type": "file", "file_id": "f"}}, "messages[0].content[0]"),
    ({**BLOCK["anthropic_messages"], "citations": {"enabled": True}}, "messages[0].content[0].citations"),
    ({"type": "document", "source": {"type": "content", "content": [{"type": "what"}]}}, "messages[0].content[0].source.content[0]"),
])
def test_what_of_anthropics_nobody_else_has_is_refused(block: dict[str, Any], param: str) -> None:
    """An answer with citations cannot be had elsewhere."""
    with pytest.raises(BadRequest) as caught:
        sent("anthropic_messages", "openai_responses", block)
    assert caught.value.param == param


def test_json_without_a_schema_is_asked_for_where_it_can_be() -> None:
    """Both of OpenAI's APIs have it."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "json"}], "response_format": {"type": "json_object"}}
    answers = {"model": "m", "input": "json", "text": {"format": {"type": "json_object"}, "verbosity": "low"}}
    for client, upstream, body in (("openai_chat", "openai_responses", chat), ("openai_responses", "openai_chat", answers)):
        raw = orjson.dumps(body)
        out = orjson.loads(dialects.request(client, upstream, raw, dialects.read(client, raw), model="m", set_fields={}, ask_usage=False))
        assert (out.get("response_format") or out["text"]["format"]) == {"type": "json_object"}
