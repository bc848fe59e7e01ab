"""What a request says by itself: agents are told from forms and talks, and only of agents and long prompts is anything hoped."""
from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.planner.likely import agent, hopeful
from tests.planner.test_planner import page

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
USER = {"role": "user", "content": "a"}
SAID = {"role": "tool", "tool_call_id": "x", "content": "r"}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "r"}]}
FORCED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(("body", "is_agent", "is_hopeful"), [
    pytest.param({}, False, False, id="a talk"),
    pytest.param({"tools": [TOOL]}, False, False, id="one tool, not used yet"),
    pytest.param({"tools": [TOOL, TOOL]}, True, True, id="several tools"),
    pytest.param({"tools": [TOOL, TOOL], "tool_choice": "auto"}, True, True, id="free to choose"),
    pytest.param({"tools": [TOOL, TOOL], "tool_choice": FORCED}, False, False, id="a form"),
    pytest.param({"tools": [TOOL], "messages": [USER, SAID]}, True, True, id="a tool has answered"),
    pytest.param({"tools": [TOOL], "messages": [USER, RESULT]}, True, True, id="Anthropic's way"),
    pytest.param({"messages": [USER, SAID]}, False, False, id="an answer without tools"),
    pytest.param({"messages": [{"role": "user", "content": "long " * 20_000}]}, False, True, id="long"),
    pytest.param({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}]}, False, True, id="marks"),
    pytest.param({"tools": None}, False, False, id="no list"),
])  # fmt: skip
def test_agents_are_told(body: dict[str, Any], is_agent: bool, is_hopeful: bool) -> None:
    for dialect in ("openai_chat", "anthropic_messages"):
        found = page(orjson.dumps({"model": "m", "max_tokens": 9, "messages": [USER], **body}), dialect)
        assert (agent(found), hopeful(found)) == (is_agent, is_hopeful)
