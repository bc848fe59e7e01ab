"""Tools are told shortly, and calls are found wherever the text is cut."""

from __future__ import annotations

import pytest

from inference.tools import CallFinder, Tool, ToolCall, balanced_end, force, render_call, render_tools

CALL = ToolCall("f", '{"a": "}{\\"", "b": [1, {}]}')
SAID = "".join(render_call(CALL))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("just text", ["just text"], id="no call"),
        pytest.param(SAID, [CALL], id="a call"),
        pytest.param(
            f"Let me see. {SAID}\n{SAID} done", ["Let me see. ", CALL, "\n", CALL, " done"], id="calls in text"
        ),
        pytest.param("a < b <tool", ["a < b <tool"], id="half a tag is text"),
        pytest.param("<tool_call>{broken</tool_call>!", ["<tool_call>{broken</tool_call>!"], id="no JSON is text"),
        pytest.param('<tool_call>\n{"name": "g"}\n</tool_call>', [ToolCall("g", "{}")], id="no arguments"),
        pytest.param(
            '<tool_call>{"name": "g", "arguments": "{\\"x\\": 1}"}</tool_call>',
            [ToolCall("g", '{"x": 1}')],
            id="as a string",
        ),
        pytest.param(SAID.removesuffix("</tool_call>"), [CALL], id="the closing tag is missing"),
        pytest.param('<tool_call>{"name": 7}', ['<tool_call>{"name": 7}'], id="never a call"),
    ],
)
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_calls_are_found_in_any_pieces(text: str, want: list[str | ToolCall], step: int) -> None:
    """The finder gives the same text and calls for any split, arguments spelt as the model spelt them."""
    finder, got = CallFinder(), []
    for at in range(0, len(text), step):
        got += finder.push(text[at : at + step])
    got += finder.finish()
    joined: list[str | ToolCall] = []
    for part in got:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    assert joined == want


@pytest.mark.parametrize(
    ("names", "said", "want"),
    [
        pytest.param(["f"], ' {"a": 1}', ToolCall("f", '{"a": 1}'), id="named"),
        pytest.param(["f"], '{"a": ', ToolCall("f", "{}"), id="cut off"),
        pytest.param(["f"], "nonsense", ToolCall("f", "{}"), id="no object"),
        pytest.param(["f"], "[1]", ToolCall("f", "{}"), id="not an object"),
        pytest.param(["find", "grep"], 'grep", "arguments": {"x": {}}', ToolCall("grep", '{"x": {}}'), id="chosen"),
        pytest.param(["find", "grep"], 'grab", "arguments": {', ToolCall("grep", "{}"), id="nearest name"),
        pytest.param(["find", "grep"], "", ToolCall("find", "{}"), id="nothing said"),
    ],
)
def test_a_forced_call_is_always_a_call(names: list[str], said: str, want: ToolCall) -> None:
    """Whatever the model says, the name was offered and the arguments are a JSON object."""
    assert force(names).call(said) == want


def test_a_forced_call_ends_with_its_object() -> None:
    """The cut is behind the brace that closes the arguments, not at one in a string."""
    text = ' {"a": "}", "b": {"c": [1]}} and more'
    assert force(["f"]).cut(text) == text.index(" and")
    assert force(["f"]).cut(' {"a": "}') is None
    assert balanced_end('{"\\"}"}', 0) == 7


def test_a_tool_is_one_line() -> None:
    """Name, parameters with types and what may be left out, and no more of the description than its first words."""
    schema = {
        "properties": {"path": {"type": "string"}, "mode": {"enum": ["r", "w"]}, "n": {"type": "integer"}, "odd": 3},
        "required": ["path", "mode"],
    }
    line = render_tools([Tool("open", "Opens a file. Then much more.", schema)]).splitlines()[1]
    assert line == "open(path: str, mode: r|w, n?: int, odd?: any) Opens a file."
    assert render_tools([Tool("x", "", {"properties": []})]).endswith("\nx()")
