from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.dialects import text


@pytest.mark.parametrize(("value", "pieces"), [
    ("be brief", ["be brief"]),
    ([{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}], ["a", "b"]),
    ([{"content": [{"type": "image_url", "image_url": {"url": "data:..."}}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "xx"}}]}], []),
    ([{"content": [{"type": "input_image", "image_url": "data:..."}, {"type": "input_file", "file_url": "https://a.example/b"}]}], []),
    ([{"type": "image_generation_call", "result": "xx"}, {"type": "function_call_output", "output": [{"result": "yes"}]}], ["yes"]),
    ([{"content": [{"type": "tool_use", "name": "t", "input": {"a": 1}}]}], ["t", '{"a":1}']),
    ([{"content": [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a report"}}]}], ["a report"]),
    ([{"content": None, "tool_calls": [{"function": {"name": "t", "arguments": "{}"}}]}], ["t", "{}"]),
])
def test_pieces(value: Any, pieces: list[str]) -> None:
    """All that a model reads as text, and nothing that it does not."""
    assert list(text.pieces("messages", orjson.dumps(value))) == pieces


def test_tools_count_as_they_stand() -> None:
    """Definitions are shown to the model as JSON, or much like it."""
    assert list(text.pieces("tools", b'[{"name": "t"}]')) == ['[{"name": "t"}]']


def test_depth_is_no_error() -> None:
    """What is too deep to walk counts as it stands."""
    raw = b"[" * 900 + b'"a"' + b"]" * 900
    assert "a" in "".join(text.pieces("messages", raw))
