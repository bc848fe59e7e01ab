"""What is remembered of parts is what their bytes say, and nothing that was refused is remembered."""
from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import dialects
from gateway.core.errors import BadRequest
from gateway.core.part import Block, Part
from gateway.dialects import blocks, parts
from gateway.dialects.blocks import Blocks, checked, fresh
from gateway.dialects.limits import FEWEST_BYTES, MAX_DEPTH, MAX_ITEMS

PADDING = "x" * 5_000


def facts(block: Block) -> tuple[int, int, int, bool]:
    return block.named(), block.size, block.weight, block.marked


@given(st.lists(st.binary(max_size=6), max_size=30), st.integers(1, 5))
def test_memory_tells_the_same_as_a_fresh_look(values: list[bytes], most: int) -> None:
    """However little fits."""
    known = Blocks(most * 2 * blocks.ENTRY_BYTES)
    for value in values:
        value = json.dumps(value.decode("latin-1")).encode()
        assert facts(known.block("team", value, 1)) == facts(fresh(value))
        assert len(known) <= 2 * most


def test_known_parts_are_not_looked_at_again() -> None:
    known = Blocks()
    assert known.block("team", b'{"a":1}', 2) is known.block("team", bytes([*b'{"a":1}']), 2)
    assert known.block("other", b'{"a":1}', 2) is not known.block("team", b'{"a":1}', 2), "by the clock one would tell what the other sent"
    known.clear()
    assert len(known) == 0


def test_a_hash_is_not_trusted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two parts of other lengths have one hash, each keeps its own facts."""
    monkeypatch.setattr(blocks, "_hash", lambda value: 7)
    known = Blocks()
    for value in (b'"a"', b'"bb"', b'"a"'):
        assert facts(known.block("team", value, 1)) == facts(fresh(value))


@pytest.mark.parametrize("value", [
    b'"\xff"', b"[" * 63 + b"]" * 63, b"[" + b"1," * MAX_ITEMS + b"1]",
    b'{"role":"user","content":[' + b"1," * MAX_ITEMS + b"1]}",
    b'{"content":[' + b"1," * MAX_ITEMS + b'1],"content":"x"}',
    b'{"content":"' + b"x" * FEWEST_BYTES + b'","x":' + b'{"a":' * 62 + b"1" + b"}" * 62 + b"}",
])  # fmt: skip
def test_what_is_over_a_limit_is_refused_each_time(value: bytes) -> None:
    known = Blocks()
    for _ in range(2):
        with pytest.raises(BadRequest):
            known.block("team", value, 2)
    assert len(known) == 0


def test_a_long_text_is_no_list() -> None:
    """Commas and brackets of a text count for nothing."""
    checked(b'{"role":"user","content":"' + b"],}" * MAX_ITEMS + b'"}', 2)
    checked(b'{"role":"user","content":"' + b"]" * FEWEST_BYTES + b'"}', 2)


def sent(**fields: object) -> bytes:
    return json.dumps({"model": "m", "padding": PADDING, "messages": [{"role": "user", "content": "hi"}], **fields}, ensure_ascii=False).encode()


@pytest.mark.parametrize("more", [{}, {"padding": ""}], ids=["remembered", "short"])
@pytest.mark.parametrize(("depth", "fine"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
@pytest.mark.parametrize("around", [
    '{{"model":"m","messages":[],"metadata":{0}{1}}}', '{{"model":"m","messages":[],"tools":{0}{1}}}',
    '{{"model":"m","messages":[{0}{1}]}}',
])  # fmt: skip
def test_depth_is_counted_from_the_top(around: str, depth: int, fine: bool, more: dict[str, str]) -> None:
    """Wherever a value stands, 64 levels are allowed and 65 are not."""
    levels = depth - (2 if "[{" in around else 1)
    body = around.format("[" * levels, "]" * levels).encode()
    body = body if more else body.replace(b'"model"', b'"padding":"%b","model"' % PADDING.encode())
    if fine:
        dialects.read("openai_chat", body)
    else:
        with pytest.raises(BadRequest, match="nested more than 64"):
            dialects.read("openai_chat", body)


@pytest.mark.parametrize("place", ["model", "messages", "metadata", "stop"])
def test_text_is_checked_in_every_place(place: str) -> None:
    body = sent(metadata={"a": "b"}, stop="x")
    broken = {"model": b'"m"', "messages": b'"hi"', "metadata": b'"b"', "stop": b'"x"'}[place]
    with pytest.raises(BadRequest, match="UTF-8"):
        dialects.read("openai_chat", body.replace(broken, broken[:-1] + b'\xc3"', 1))


def test_a_list_of_too_many_messages_is_refused() -> None:
    for many in (MAX_ITEMS, MAX_ITEMS + 1):
        body = b'{"model":"m","messages":[' + b",".join([b'{"role":"user"}'] * many) + b"]}"
        if many <= MAX_ITEMS:
            assert len(dialects.read("openai_chat", body).parts) == many
        else:
            with pytest.raises(BadRequest, match="20000 elements"):
                dialects.read("openai_chat", body)


def test_short_requests_leave_nothing_behind() -> None:
    """Nobody sends them again, and they cost little to look at."""
    before = len(blocks.KNOWN)
    dialects.read("openai_chat", b'{"model":"m","messages":[{"role":"user","content":"never seen before"}]}')
    assert len(blocks.KNOWN) == before


def test_the_same_message_is_the_same_block_in_any_request() -> None:
    one, two = (parts.read(sent(n=n), ["messages"], "team").parts for n in (1, 2))
    assert [part.block for part in one] == [part.block for part in two]
    assert Part(0, 0, "messages", 3, one[0].block).path == "/messages/3"
