"""A body read from where it goes on is read as if it were new: same places, same parts, same refusals."""
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import dialects
from gateway.core.errors import GatewayError
from gateway.dialects import beginnings, blocks, facts, parts
from gateway.prefix import chain

ORDER = dialects.order("openai_chat")
LONG = "word " * 700
MESSAGES = st.fixed_dictionaries({
    "role": st.sampled_from(["user", "assistant", "tool"]),
    "content": st.sampled_from([LONG, LONG + "é", "short", ""]) | st.text(max_size=8),
})  # fmt: skip
EXTRA = st.dictionaries(st.sampled_from(["stream", "tools", "model", "n", "x"]), st.sampled_from([True, 1, [], [{"a": 1}], {}, "m"]), max_size=3)


def seen(body: bytes) -> Any:
    """All that a reading says, or how it refuses."""
    try:
        found = parts.read(body, ORDER, "team")
    except GatewayError as error:
        return type(error), str(error)
    marks = [(part.start, part.end, part.field, part.item, part.block.named()) for part in found.parts]
    usual = facts.usual(found.values)
    told = usual and {name: bool(v) if isinstance(v := getattr(usual, name), list) else v for name in usual.__struct_fields__}
    return list(found.places.items()), marks, told


def forget() -> None:
    beginnings.KNOWN.clear()
    blocks.KNOWN.clear()
    chain._runs.clear()


def written(first: dict[str, Any], messages: list[Any], last: dict[str, Any], *, spaced: bool) -> bytes:
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps({**first, "messages": messages, **last}, separators=separators, ensure_ascii=False).encode()


@settings(deadline=None, max_examples=150)
@given(EXTRA, st.lists(MESSAGES, min_size=3, max_size=6), EXTRA, st.lists(st.tuples(st.integers(0, 6), MESSAGES), max_size=4), st.booleans(), st.data())
def test_a_turn_is_read_as_if_it_were_new(
    first: dict[str, Any], talk: list[Any], last: dict[str, Any], edits: list[tuple[int, Any]], spaced: bool, data: st.DataObject
) -> None:
    """Turns that go on, turn back, change a message or what stands around them; and bytes that are damaged anywhere."""
    forget()
    bodies = []
    for at, message in [(0, talk[0]), *edits]:
        talk = [*talk[: max(at, 1)], message, *talk[max(at, 1) + 1 :]] if data.draw(st.booleans()) else [*talk, message]
        bodies.append(written(first, talk, data.draw(st.sampled_from([last, {}, {"model": "m"}])), spaced=spaced))
    broken = bodies[-1]
    place = data.draw(st.integers(0, len(broken) - 1))
    bodies.append(broken[:place] + data.draw(st.sampled_from([b"", b",", b"]", b"}", b'"', b"\xff", b'"model":1,'])) + broken[place + 1 :])
    warm = [seen(body) for body in bodies]
    for body, found in zip(bodies, warm, strict=True):
        forget()
        assert seen(body) == found


@pytest.mark.parametrize("tail", [b",]}", b",,{}]}", b"]", b"]}x", b'],"model":"a"}', b'],"messages":[]}', b',{"a":1}', b"}", b""])
def test_an_end_that_is_none_is_refused(tail: bytes) -> None:
    """What follows on a known beginning must make a whole body with it, without a key twice."""
    forget()
    body = written({"model": "m"}, [{"role": "user", "content": LONG}] * 5, {}, spaced=False)
    assert not isinstance(seen(body)[0], type)
    assert len(beginnings.KNOWN._alike) == 1
    known = next(iter(beginnings.KNOWN._alike.values()))[0]
    broken = known.text + tail
    assert isinstance(seen(broken)[0], type)
    refusal = seen(broken)
    forget()
    assert seen(broken) == refusal


def test_memory_is_bounded_and_keeps_what_is_used() -> None:
    """Conversations that begin alike are kept up to four, bytes up to the limit, the latest longest."""
    kept = beginnings.Beginnings(max_bytes=60_000)
    bodies = [written({"model": f"m{n}"}, [{"role": "user", "content": LONG}] * 4, {}, spaced=False) for n in range(20)]
    for body in bodies:
        read = parts.read(body, ORDER, "team")
        assert read.values is not None
        fields = {"messages": read.parts}
        kept.keep("team", ORDER, body, read.places, read.values, fields, "messages", None)
    assert kept._bytes == sum(len(known.text) for alike in kept._alike.values() for known in alike) <= 60_000
    assert kept.find("team", ORDER, bodies[-1]) is not None
    assert kept.find("team", ORDER, bodies[0]) is None


def test_what_is_used_stays_and_dialects_are_kept_apart() -> None:
    """A beginning that is found again outlives one that came after it; another dialect, whose prompt has other fields, finds none."""
    kept = beginnings.Beginnings(max_bytes=25_000)
    bodies = [written({"model": f"m{n}"}, [{"role": "user", "content": LONG}] * 4, {}, spaced=False) for n in range(3)]
    for body in bodies:
        read = parts.read(body, ORDER, "team")
        assert read.values is not None
        kept.keep("team", ORDER, body, read.places, read.values, {"messages": read.parts}, "messages", None)
        assert kept.find("team", ORDER, bodies[0]) is not None
    assert kept.find("team", ORDER, bodies[1]) is None
    assert kept.find("team", dialects.order("openai_responses"), bodies[0]) is None
    assert kept.find("other", ORDER, bodies[0]) is None, "by the clock one team would tell what another sent"


@settings(deadline=None, max_examples=60)
@given(st.lists(MESSAGES, min_size=8, max_size=14), st.lists(st.integers(1, 14), min_size=1, max_size=5))
def test_a_chain_that_goes_on_is_the_chain_made_anew(talk: list[Any], lengths: list[int]) -> None:
    """Whatever turn comes next, longer or shorter."""
    forget()
    for length in lengths:
        found = parts.read(written({"model": "m"}, talk[:length], {}, spaced=False), ORDER, "team").parts
        warm = chain.chain("team", "m", found, b"session")
        kept = dict(chain._runs)
        chain._runs.clear()
        assert chain.chain("team", "m", found, b"session").links == warm.links
        chain._runs.update(kept)
