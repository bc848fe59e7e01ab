from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.errors import BadRequest
from gateway.dialects import splice

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4), max_leaves=8)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=6)
SPACE = st.text(" \t\r\n", max_size=3)
LAYOUTS = st.tuples(SPACE, SPACE, SPACE, SPACE, st.booleans())


def written(value: dict[str, Any], layout: tuple[str, str, str, str, bool]) -> bytes:
    before, comma, colon, after, ascii_only = layout
    text = json.dumps(value, ensure_ascii=ascii_only, separators=(f"{comma},{comma}", f"{colon}:{colon}"))
    try:
        return (before + text[0] + comma + text[1:] + after).encode()
    except UnicodeEncodeError:
        assume(False)
        raise


@given(OBJECTS, LAYOUTS)
def test_spans_find_every_value(value: dict[str, Any], layout: tuple[str, str, str, str, bool]) -> None:
    """Whatever the spaces and escapes, each place holds exactly its value."""
    if any("\ud800" <= c <= "\udfff" for c in json.dumps(value, ensure_ascii=False)):
        return
    body = written(value, layout)
    places = splice.spans(body)
    assert {key: json.loads(body[a:b]) for key, (a, b) in places.items()} == value
    assert list(places) == list(value)


@given(OBJECTS, LAYOUTS, st.data())
def test_a_change_touches_nothing_else(value: dict[str, Any], layout: tuple[str, str, str, str, bool], data: st.DataObject) -> None:
    """Set, added and removed fields give the expected object; all other values keep their bytes and their order."""
    if any("\ud800" <= c <= "\udfff" for c in json.dumps(value, ensure_ascii=False)):
        return
    body = written(value, layout)
    places = splice.spans(body)
    keys = st.sampled_from(sorted(value)) if value else st.nothing()
    remove = data.draw(st.sets(keys, max_size=3) if value else st.just(set()))
    fields = data.draw(st.dictionaries(keys | st.sampled_from(["new", "stream_options"]) if value else st.just("new"), st.just(b"[1, 2]"), max_size=3))
    changed = splice.change(body, places, fields, remove)
    expected = {key: each for key, each in value.items() if key not in remove or key in fields}
    expected.update({key: [1, 2] for key in fields})
    assert json.loads(changed) == expected
    after = splice.spans(changed)
    for key in expected.keys() & value.keys() - fields.keys():
        assert changed[slice(*after[key])] == body[slice(*places[key])]
    if not fields and not remove & value.keys():
        assert changed is body


@given(st.lists(VALUES, max_size=6), LAYOUTS)
def test_items_finds_every_element(value: list[Any], layout: tuple[str, str, str, str, bool]) -> None:
    """The places of an array's elements hold exactly these, whatever stands between them."""
    if any("\ud800" <= c <= "\udfff" for c in json.dumps(value, ensure_ascii=False)):
        return
    body = written({"a": value}, layout)
    assert [json.loads(body[a:b]) for a, b in splice.items(body, *splice.spans(body)["a"])] == value


@given(OBJECTS, LAYOUTS)
def test_one_pass_finds_the_same(value: dict[str, Any], layout: tuple[str, str, str, str, bool]) -> None:
    """Places of values and of elements, or it says that it cannot tell."""
    if any("\ud800" <= c <= "\udfff" for c in json.dumps(value, ensure_ascii=False)):
        return
    body = written(value, layout)
    found = splice.spread(body)
    huge = any(isinstance(each, int) and not -(2**63) <= each < 2**63 for each in value.values())
    assert found is not None or huge
    if found is not None:
        places, lists, values = found.places, found.lists, found.values
        assert values is not None
        assert values.keys() == value.keys()
        assert places == splice.spans(body)
        assert lists == {
            key: [(a, b, body[a:b]) for a, b in splice.items(body, *places[key])] for key, each in value.items() if isinstance(each, list)
        }


@given(st.lists(st.tuples(st.sampled_from("ab"), VALUES), min_size=2, max_size=5), LAYOUTS)
def test_one_pass_is_not_deceived(members: list[tuple[str, Any]], layout: tuple[str, str, str, str, bool]) -> None:
    """Where a key stands twice, whatever the values, it does not tell."""
    if any("\ud800" <= c <= "\udfff" for c in json.dumps(members, ensure_ascii=False)):
        return
    _, comma, colon, _, ascii_only = layout
    inner = f"{comma},{comma}".join(f'"{key}"{colon}:{colon}{json.dumps(each, ensure_ascii=ascii_only)}' for key, each in members)
    body = f"{{{comma}{inner}{comma}}}".encode()
    twice = len({key for key, _ in members}) < len(members)
    assert splice.spread(body) is None or not twice


@pytest.mark.parametrize("body", [
    b'{"a":{},"b":{"k":1},"a":{"x":[],"b":{"k":1}}}', b'{"a":[1],"b":2,"a":[]}', b'{"a":[],"b":2,"a":[1]}', b'{"a":[12],"a":[1]}',
    b'{"a":{"k":1,"k":2}}', b'{"a":1', b"[1]", b'{"a":NaN}', b'{"a":"' + b"x" * 70_000 + b'"}',
])  # fmt: skip
def test_one_pass_leaves_to_others_what_it_cannot_tell(body: bytes) -> None:
    assert splice.spread(body) is None


def test_items_of_no_array() -> None:
    """A string has no elements."""
    assert splice.items(b'"abc"', 0, 5) == []


@pytest.mark.parametrize(("body", "code"), [
    pytest.param(b"", "invalid_json", id="empty"),
    pytest.param(b"[1]", "invalid_json", id="no object"),
    pytest.param(b'{"a": 1} x', "invalid_json", id="something behind it"),
    pytest.param(b'{"a": NaN}', "invalid_json", id="NaN"),
    pytest.param(b'{"a": Infinity}', "invalid_json", id="infinity"),
    pytest.param(b'{"a": 1,}', "invalid_json", id="trailing comma"),
    pytest.param(b'{"a": "\xff"}', "invalid_json", id="not UTF-8"),
    pytest.param(b'{"a": "\xed\xa0\x80"}', "invalid_json", id="an encoded surrogate"),
    pytest.param(b'{"a": "\\ud800"}', "invalid_json", id="a lone surrogate"),
    pytest.param(b'\xef\xbb\xbf{"a": 1}', "invalid_json", id="byte order mark"),
    pytest.param(b'{"a":1,"a":2}', "duplicate_key", id="twice"),
    pytest.param(b'{"a":1,"a":1}', "duplicate_key", id="twice the same"),
    pytest.param(b'{"a":12,"b":2,"a":1}', "duplicate_key", id="one value a prefix of the other"),
    pytest.param(b'{"a":1,"\\u0061":2}', "duplicate_key", id="twice, once escaped"),
    pytest.param(b'{"a":{},"b":{"k":1},"a":{"x":[],"b":{"k":1}}}', "duplicate_key", id="twice, the second holding the rest"),
    pytest.param(b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "too_deep", id="65 levels of arrays"),
    pytest.param(b'{"a":' * 65 + b"1" + b"}" * 65, "too_deep", id="65 levels of objects"),
    pytest.param(b'{"a":[' * 40 + b"]}" * 40, "too_deep", id="80 levels of both"),
    pytest.param(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "too_deep", id="a bomb"),
    pytest.param(b'{"a":' + b"[1," * 100_000 + b"1" + b",1]" * 100_000 + b"}", "too_deep", id="a bomb with siblings"),
    pytest.param(b'{"a":' * 100_000, "too_deep", id="an open bomb"),
])
def test_a_body_that_cannot_be_trusted_is_refused(body: bytes, code: str) -> None:
    """Every such body is a 400 with a code of its own, never an exception of a parser."""
    with pytest.raises(BadRequest) as caught:
        splice.checked(body)
    assert caught.value.code == code


@pytest.mark.parametrize("body", [
    b'{"a":' + b"[" * 63 + b"]" * 63 + b"}",
    b'{"a":"' + b"]" * 500 + b'"}',
    b'{"a":"\\"' + b"[{" * 500 + b'\\\\"}',
    b'{"a":[' + b"[]," * 500 + b"[]]}",
])
def test_deep_is_counted_outside_of_text(body: bytes) -> None:
    """64 levels are allowed, and brackets in strings or side by side are none."""
    assert list(splice.checked(body)) == ["a"]


def test_the_place_is_named() -> None:
    """An error inside a field names it."""
    with pytest.raises(BadRequest) as caught:
        splice.spans(b'{"x":1,"x":1}', where="stream_options")
    assert caught.value.param == "stream_options"
