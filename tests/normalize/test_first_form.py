"""The tools that were seen first travel; nothing else is ever touched."""
from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import splice
from gateway.normalize import LEVELS, PASSES, Change, normalize
from gateway.normalize.first_form import FirstForms

A = '{"name":"a","parameters":{"type":"object","properties":{"y":{},"x":{}}}}'
B = '{"name":"b","parameters":{}}'


def body(tools: str) -> bytes:
    return b'{"model":"m","tools":%s,"messages":[]}' % tools.encode()


def run(memory: FirstForms, level: str, tools: str, domain: str = "team") -> tuple[str, list[Change]]:
    """The tools that go out, and the changes."""
    raw = body(tools)
    changes = normalize(memory, level, domain, raw, splice.spans(raw))
    return (changes[0].value.decode() if changes else tools), changes


@pytest.mark.parametrize(("level", "second", "same"), [
    ("lossless", f"[{A}, {B}]", True), ("lossless", f"[ {A},{B} ]".replace('"a"', '"\\u0061"'), True), ("lossless", f"[{B},{A}]", False),
    ("lossless", f"[{B}]", False),
    ("equivalent", f"[{B},{A}]", True), ("equivalent", f"[{B}, {A}]", True), ("equivalent", f"[{A}]", False), ("off", f"[{A}, {B}]", False),
    ("equivalent", f"[{A},{B},{B}]", False),
])  # fmt: skip
def test_the_same_tools_go_out_as_seen_first(level: str, second: str, same: bool) -> None:
    """Lossless: another spelling of the same JSON. Equivalent: another order too. Other tools stay other tools."""
    memory, first = FirstForms(), f"[{A},{B}]"
    assert run(memory, level, first) == (first, [])
    out, changes = run(memory, level, second)
    assert out == (first if same else second)
    assert len(changes) == same
    if same:
        (change,) = changes
        assert (change.field, set(change.receipt)) == ("tools", {"pass", "place", "before", "after"})
        assert change.receipt["before"] != change.receipt["after"]


@pytest.mark.parametrize("tools", [
    '[{"name":"a","cache_control":{"type":"ephemeral"}}]', '[{"name":"a"', "null", "{}", '"text"', "[" * 2000 + "]" * 2000, "[]",
])  # fmt: skip
def test_what_is_marked_or_cannot_be_read_is_left_alone(tools: str) -> None:
    """The client's own markers stay where they are; bad JSON is somebody else's to refuse."""
    raw = body(tools)
    start = raw.index(b'"tools":') + 8
    spans = {"tools": (start, start + len(tools))}
    assert normalize(FirstForms(), "relocating", "team", raw, spans) == []


def test_a_request_without_tools_is_left_alone() -> None:
    raw = b'{"model":"m","messages":[]}'
    assert normalize(FirstForms(), "relocating", "team", raw, splice.spans(raw)) == []


def test_domains_do_not_meet() -> None:
    """One team's form is never sent for another."""
    memory = FirstForms()
    run(memory, "equivalent", f"[{A},{B}]", "one")
    assert run(memory, "equivalent", f"[{B},{A}]", "two") == (f"[{B},{A}]", [])


def test_a_pass_can_be_switched_off() -> None:
    memory, raw = FirstForms(), body(f"[{B},{A}]")
    run(memory, "equivalent", f"[{A},{B}]")
    switches = {each.__name__: False for each in PASSES}
    assert normalize(memory, "equivalent", "team", raw, splice.spans(raw), switches) == []


TOOL = st.dictionaries(st.sampled_from(["name", "x", "y", "z"]), st.integers(0, 3) | st.text(max_size=3), max_size=4)


@given(st.lists(st.lists(TOOL, max_size=4), max_size=6), st.sampled_from(LEVELS), st.randoms())
def test_normalizing_is_idempotent_and_loses_nothing(requests: list[list[dict[str, object]]], level: str, random: object) -> None:
    """What goes out, sent again, goes out again; and it is the same set of tools."""
    memory = FirstForms()
    for tools in requests:
        sent = json.dumps(tools, indent=random.choice([None, 1]))  # type: ignore[attr-defined]
        out, _ = run(memory, level, sent)
        assert sorted(map(repr, map(sorted_items, json.loads(out)))) == sorted(map(repr, map(sorted_items, tools)))
        assert run(memory, level, out) == (out, [])
        assert run(memory, level, sent)[0] == out


def sorted_items(tool: dict[str, object]) -> list[tuple[str, object]]:
    return sorted(tool.items())
