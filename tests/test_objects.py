"""What an object is made of, in the provider's own words, or that it cannot be said in them."""
from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from gateway.objects import Latest, made_of

TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}, "strict": True}}


def made(system: list[Any], tools: Any = None) -> dict[str, Any] | None:
    nothing = cast(Any, None)
    raw = b"" if tools is None else orjson.dumps(tools)
    return made_of(Latest(nothing, nothing, "gemini-3.8-flash", raw, [orjson.dumps({"role": "system", "content": content}) for content in system]))


def test_system_messages_and_tools_become_its_instruction_and_declarations() -> None:
    assert made(["Rules.", [{"type": "text", "text": "More."}]], [TOOL]) == {
        "model": "models/gemini-3.8-flash", "systemInstruction": {"parts": [{"text": "Rules."}, {"text": "More."}]},
        "tools": [{"functionDeclarations": [{"name": "look", "description": "Looks.", "parametersJsonSchema": {"type": "object"}}]}],
    }  # fmt: skip
    assert made(["Rules."]) == {"model": "models/gemini-3.8-flash", "systemInstruction": {"parts": [{"text": "Rules."}]}}


@pytest.mark.parametrize(("system", "tools"), [
    ([None], None), ([[{"type": "image_url", "image_url": {"url": "x"}}]], None), (["Rules."], [{"type": "web_search"}]), (["Rules."], ["look"]),
    (["Rules."], [{"type": "function", "function": {}}]), ([5], None),
])  # fmt: skip
def test_what_it_cannot_hold_makes_none(system: list[Any], tools: Any) -> None:
    assert made(system, tools) is None
