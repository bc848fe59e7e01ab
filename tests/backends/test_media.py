"""An engine of one's own is told to fetch nothing."""
from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.backends.media import UrlNotAllowed, check, is_inside
from gateway.dialects import parts

PNG = "data:image/png;base64,iVBORw0KGgo="


def ask(part: Any, field: str = "messages") -> None:
    body = json.dumps({"model": "m", field: [{"role": "user", "content": [{"type": "text", "text": "hi"}, part]}]}).encode()
    check(body, parts.read(body, ["system", "messages", "input"], "team").parts)


@pytest.mark.parametrize("url", [
    "http://169.254.169.254/latest", "https://example.com/a.png", "file:///etc/passwd", "http://allowed.test\\@127.0.0.1/", "//x",
    "ftp://x/y", "", "\tdata.example.com", "javascript:data:",
])  # fmt: skip
def test_only_data_goes_to_an_engine_inside(url: str) -> None:
    """In every place where a dialect names something to fetch."""
    for part in (
        {"type": "image_url", "image_url": {"url": url}}, {"type": "image_url", "image_url": url}, {"image_url": {"url": url}},
        {"type": "video_url", "video_url": {"url": url}}, {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "image", "source": {"type": "url", "url": url}}, {"type": "document", "source": {"type": "url", "url": url}},
        {"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": url}}]},
    ):  # fmt: skip
        with pytest.raises(UrlNotAllowed):
            ask(part)
    for part in ({"type": "input_image", "image_url": url}, {"type": "input_file", "file_url": url}):
        with pytest.raises(UrlNotAllowed):
            ask(part, "input")


def test_names_cannot_be_hidden_by_escapes() -> None:
    """JSON may spell a key's letters in other ways."""
    body = rb'{"model": "m", "messages": [{"content": [{"im\u0061ge\u005f\u0075rl": {"\u0075rl": "http:\/\/10.0.0.1"}}]}]}'
    with pytest.raises(UrlNotAllowed):
        check(body, parts.read(body, ["system", "messages", "input"], "team").parts)


@pytest.mark.parametrize("part", [
    b'{"type": "image_url", "image_url": {"url": "http://10.0.0.1/", "url": "data:,x"}}',
    b'{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}, "image_url": {"url": "data:,x"}}',
    b'{"type": "image_url", "type": "tool_use", "image_url": {"url": "http://10.0.0.1/"}}',
    b'{"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/", "url": "data:,x"}}',
    b'{"type": "document", "source": {"type": "content", "content": [{"type": "image", "source": {"url": "http://10.0.0.1/"}}]}}',
])  # fmt: skip
def test_a_key_twice_hides_nothing(part: bytes) -> None:
    """Of two values one reader takes the first, another the last; so both are looked at."""
    for body in (
        b'{"model": "m", "messages": [{"role": "user", "content": [%b]}]}' % part,
        b'{"model": "m", "messages": [{"role": "user", "content": [%b], "content": "hi"}]}' % part,
        b'{"model": "m", "messages": [{"role": "user", "content": "hi", "content": [%b]}]}' % part,
        b'{"model": "m", "input": [{"role": "user", "content": [%b], "content": "hi"}]}' % part,
    ):
        with pytest.raises(UrlNotAllowed):
            check(body, parts.read(body, ["system", "messages", "input"], "team").parts)


@pytest.mark.parametrize(("tool", "refused"), [
    pytest.param({"type": "mcp", "server_label": "x", "server_url": "http://169.254.169.254/"}, True, id="a server"),
    pytest.param({"type": "mcp", "connector_id": "connector_x"}, True, id="a connector"),
    pytest.param({"type": "mcp", "server_label": "x"}, True, id="a server that the engine knows by name"),
    pytest.param({"type": "mcp_toolset", "mcp_server_name": "x"}, True, id="Anthropic's word for it"),
    pytest.param({"type": "function", "function": {"name": "mcp"}}, False, id="a function of that name"),
    pytest.param({"type": "function", "function": {"name": "f", "parameters": {"properties": {"type": {"type": "mcp"}}}}}, False, id="the word in a schema"),
    pytest.param({"type": "function", "function": {"name": "f", "parameters": {"properties": {"server_url": {"type": "string"}}}}}, False, id="an argument"),
])  # fmt: skip
def test_an_engine_inside_calls_no_tool_servers(tool: Any, refused: bool) -> None:
    for tools in ([tool], [{"type": "function", "function": {"name": "g"}}, tool]):
        body = json.dumps({"model": "m", "tools": tools, "messages": [{"role": "user", "content": "hi"}]}).encode()
        found = parts.read(body, ["tools", "messages"], "team").parts
        if refused:
            with pytest.raises(UrlNotAllowed):
                check(body, found)
        else:
            check(body, found)


def test_what_is_known_of_bytes_in_one_field_says_nothing_of_another() -> None:
    """The same list as a system prompt, which fetches nothing, and as tools, which name a server; long enough to be remembered."""
    value = [{"type": "mcp", "server_label": "x" * 5_000, "server_url": "http://169.254.169.254/"}]
    said = json.dumps({"input": value, "messages": []}).encode()
    check(said, parts.read(said, ["tools", "input"], "team").parts)
    asked = json.dumps({"tools": value, "messages": []}).encode()
    for _ in range(2):
        with pytest.raises(UrlNotAllowed):
            check(asked, parts.read(asked, ["tools", "messages"], "team").parts)


@pytest.mark.parametrize("part", [
    {"type": "image_url", "image_url": {"url": PNG}}, {"type": "image", "source": {"type": "base64", "data": "x"}},
    {"type": "text", "text": 'see "image_url": "http://x"'},
    {"type": "tool_use", "name": "open", "input": {"image_url": "https://example.com", "url": "https://example.com"}},
])  # fmt: skip
def test_what_nobody_fetches_is_let_through(part: Any) -> None:
    """Data, words and what a tool was called with."""
    ask(part)


@pytest.mark.parametrize(("host", "inside"), [
    ("127.0.0.1", True), ("10.1.2.3", True), ("169.254.169.254", True), ("::1", True), ("[fd00::1]", True), ("localhost", True),
    ("vllm", True), ("vllm.models.svc", True), ("gpu.internal", True), ("api.openai.com", False), ("8.8.8.8", False),
])  # fmt: skip
def test_which_backends_are_inside(host: str, inside: bool) -> None:
    assert is_inside(host) is inside
