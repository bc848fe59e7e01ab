from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway import dialects
from gateway.core.errors import BadRequest

GOOD = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

WITH_MESSAGES = pytest.mark.parametrize("dialect", ["openai_chat", "anthropic_messages"])


@WITH_MESSAGES
@pytest.mark.parametrize(("fields", "param"), [
    pytest.param({"model": None}, "model", id="no model"),
    pytest.param({"model": ""}, "model", id="empty model"),
    pytest.param({"model": 5}, "model", id="model is a number"),
    pytest.param({"messages": None}, "messages", id="no messages"),
    pytest.param({"messages": "hi"}, "messages", id="messages is text"),
    pytest.param({"max_tokens": -1}, "max_tokens", id="negative"),
    pytest.param({"max_tokens": True}, "max_tokens", id="true is not 1"),
    pytest.param({"max_tokens": "5"}, "max_tokens", id="text is not 5"),
    pytest.param({"max_tokens": 1.5}, "max_tokens", id="a fraction"),
    pytest.param({"max_tokens": 2**60}, "max_tokens", id="absurd"),
    pytest.param({"stream": "true"}, "stream", id="stream is text"),
    pytest.param({"stream": 1}, "stream", id="stream is a number"),
    pytest.param({"service_tier": 1}, "service_tier", id="tier is a number"),
    pytest.param({"tools": {}}, "tools", id="tools is an object"),
])
def test_wrong_types_are_named(dialect: str, fields: dict[str, Any], param: str) -> None:
    """A field of the wrong type is a 400 that names it, in both dialects."""
    with pytest.raises(BadRequest) as caught:
        dialects.read(dialect, orjson.dumps({**GOOD, **fields}))
    assert caught.value.param == param


@WITH_MESSAGES
@pytest.mark.parametrize("digits", ["9" * 30, "9" * 5000])
def test_a_number_of_many_digits_is_named(dialect: str, digits: str) -> None:
    """A number too long for Python's own parser is still an error about that field."""
    body = b'{"model":"m","messages":[],"max_tokens":' + digits.encode() + b"}"
    with pytest.raises(BadRequest) as caught:
        dialects.read(dialect, body)
    assert caught.value.param == "max_tokens"


@WITH_MESSAGES
@pytest.mark.parametrize("tools", [None, []])
def test_no_tools(dialect: str, tools: list[Any] | None) -> None:
    """Null and an empty list are no tools."""
    assert not dialects.read(dialect, orjson.dumps({**GOOD, "tools": tools})).has_tools


@WITH_MESSAGES
def test_tools(dialect: str) -> None:
    """A list with something in it is tools."""
    assert dialects.read(dialect, orjson.dumps({**GOOD, "tools": [{"name": "t"}]})).has_tools
