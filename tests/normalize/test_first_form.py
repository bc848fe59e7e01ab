"""The tools that were seen first travel; nothing else is ever touched."""
from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.normalize import LEVELS, PASSES, Memory
from tests.normalize.views import assistant, run, user

A = '{"name":"a","parameters":{"type":"object","properties":{"y":{},"x":{}}}}'
A2 = '{"parameters":{"properties":{"x":{},"y":{}},"type":"object"},"name":"a"}'
B = '{"name":"b","parameters":{}}'
STRICT = A.replace('"name"', '"strict":true,"name"')
STRICT2 = '{"parameters":{"properties":{"x":{},"y":{}},"type":"object"},"name":"a","strict":true}'
STRICT3 = '{"parameters":{"properties":{"y":{},"x":{}},"type":"object"},"name":"a","strict":true}'


def body(tools: str, *messages: object) -> bytes:
    return b'{"model":"m","tools":%s,"messages":%s}' % (tools.encode(), json.dumps(messages or [user()]).encode())


def out(memory: Memory, level: str, raw: bytes, domain: str = "team") -> str:
    """The tools that go out."""
    done = run(memory, raw, level, domain=domain)
    return done.body[slice(*done.spans["tools"])].decode()


@pytest.mark.parametrize(("level", "first", "second", "same"), [
    ("lossless", f"[{A},{B}]", f"[{A}, {B}]", True), ("lossless", f"[{A},{B}]", f"[ {A},{B} ]".replace('"a"', '"\\u0061"'), True),
    ("lossless", f"[{A},{B}]", f"[{B},{A}]", False), ("lossless", f"[{A},{B}]", f"[{B}]", False), ("lossless", f"[{A}]", f"[{A2}]", False),
    ("equivalent", f"[{A},{B}]", f"[{B},{A}]", True), ("equivalent", f"[{A},{B}]", f"[{B}, {A}]", True),
    ("equivalent", f"[{A},{B}]", f"[{A}]", False), ("equivalent", f"[{A},{B}]", f"[{A},{B},{B}]", False),
    ("equivalent", f"[{A}]", f"[{A2}]", True), ("equivalent", f"[{STRICT}]", f"[{STRICT2}]", False),
    ("equivalent", f"[{STRICT}]", f"[{STRICT3}]", True), ("equivalent", f"[{B},{A},{B}]", f"[{A},{B},{B}]", False),
])  # fmt: skip
def test_the_same_tools_go_out_as_seen_first(level: str, first: str, second: str, same: bool) -> None:
    """Lossless: another spelling of the same JSON. Equivalent: another order too, but never of a strict tool's properties,
    nor where two tools have one name. Other tools stay other tools. In one conversation, and from one to the next."""
    memory = Memory()
    assert out(memory, level, body(first)) == first
    for messages in ([user(), assistant(), user()], [user("another conversation")]):
        done = run(memory, body(second, *messages), level)
        assert done.body[slice(*done.spans["tools"])].decode() == (first if same else second)
        if same:
            (change,) = done.changes
            assert set(change.receipt) == {"pass", "place", "before", "after"}
            assert (change.receipt["pass"], change.receipt["place"]) == ("first_form", "/tools")


def test_a_conversation_under_way_keeps_its_own_form() -> None:
    """Met in the middle it goes on as it came, whatever was seen before, and from then on it does not change."""
    memory, middle = Memory(), [user("long ago"), assistant(), user()]
    out(memory, "equivalent", body(f"[{A},{B}]"))
    assert out(memory, "equivalent", body(f"[{B},{A}]", *middle)) == f"[{B},{A}]"
    assert out(memory, "equivalent", body(f"[{A},{B}]", *middle, assistant(), user())) == f"[{B},{A}]"


def test_the_level_of_a_conversation_is_the_one_it_began_with() -> None:
    memory = Memory()
    out(memory, "lossless", body(f"[{A},{B}]"))
    assert out(memory, "equivalent", body(f"[{B},{A}]", user(), assistant(), user())) == f"[{B},{A}]"
    assert out(memory, "equivalent", body(f"[{B},{A}]", user("new"))) == f"[{B},{A}]"
    assert out(memory, "equivalent", body(f"[{A},{B}]", user("newer"))) == f"[{B},{A}]"


@pytest.mark.parametrize("tools", ['[{"name":"a","cache_control":{"type":"ephemeral"}}]', "null", "[]"])
def test_marked_and_absent_tools_leave_no_trace(tools: str) -> None:
    """The client's own markers stay where they are."""
    assert run(Memory(), body(tools), "relocating").changes == []


def test_tools_that_cannot_be_read_go_on_as_they_came() -> None:
    """With a receipt that says why."""
    done = run(Memory(), body('[{"name":"a"},"b"]'), "relocating")
    assert [change.receipt for change in done.changes] == [{"pass": "first_form", "place": "/tools", "left": "not a list of objects"}]


def test_domains_do_not_meet() -> None:
    """One team's form is never sent for another."""
    memory = Memory()
    out(memory, "equivalent", body(f"[{A},{B}]"), "one")
    assert out(memory, "equivalent", body(f"[{B},{A}]"), "two") == f"[{B},{A}]"


def test_a_pass_can_be_switched_off() -> None:
    memory = Memory()
    out(memory, "equivalent", body(f"[{A},{B}]"))
    switches = {each.__name__: False for _, each in PASSES}
    assert run(memory, body(f"[{B},{A}]"), "equivalent", switches=switches).changes == []


TOOL = st.dictionaries(st.sampled_from(["name", "x", "y", "z"]), st.integers(0, 3) | st.sampled_from(["", "a", "é", "\n"]), max_size=4)


@given(st.lists(st.lists(TOOL, max_size=4), max_size=6), st.sampled_from(LEVELS[1:]), st.booleans())
def test_normalizing_is_idempotent_and_loses_nothing(requests: list[list[dict[str, object]]], level: str, indented: bool) -> None:
    """What goes out, sent again, goes out again; and it is the same set of tools."""
    memory = Memory()
    for tools in requests:
        sent = body(json.dumps(tools, indent=1 if indented else None))
        first = out(memory, level, sent)
        assert sorted(map(repr, map(sorted_items, json.loads(first)))) == sorted(map(repr, map(sorted_items, tools)))
        assert out(memory, level, body(first)) == first == out(memory, level, sent)


def sorted_items(tool: dict[str, object]) -> list[tuple[str, object]]:
    return sorted(tool.items())
