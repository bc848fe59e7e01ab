from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Discriminator, Field, Tag

from router_policies.strict_yaml import BadFile, load


class A(BaseModel):
    alpha: int


class B(BaseModel):
    beta: list[Literal["one", "two"]] = []


def _shape(value: object) -> str:
    return "text" if isinstance(value, str) else "b"


class Shapes(BaseModel):
    deep: dict[str, list[A | B]] = {}
    tagged: Annotated[Annotated[str, Tag("text")] | Annotated[B, Tag("b")], Discriminator(_shape)] = ""
    bounded: list[str] = Field(default=[], max_length=2, min_length=0)
    named: str = Field(default="a", pattern="^[a-z]+$", max_length=5)
    must: int


@pytest.mark.parametrize(("text", "expected"), [
    ("x: 1", ["f:1:1: x: unknown field `x` (known: bounded, deep, must, named, tagged)", "f:1:1: must: field `must` is missing"]),
    ("must: 1\nnamed: A1", ["f:2:8: named: must look like ^[a-z]+$"]),
    ("must: 1\nnamed: abcdefgh", ["f:2:8: named: must have at most 5 characters"]),
    ("must: 1\nbounded: [a, b, c]", ["f:2:10: bounded: must have at most 2 entries"]),
    ("must: 1\ntagged: {bta: []}", ["f:2:10: tagged.bta: unknown field `bta` (did you mean `beta`?)"]),
    ("must: 1\ntagged: {beta: [one, tow]}", ["f:2:22: tagged.beta[1]: must be one of one, two; is `tow` (did you mean `two`?)"]),
    ("must: 1\ntagged: 7", ["f:2:9: tagged: must be a mapping, is a number"]),
])
def test_pydantic_speaks_our_words(text, expected):
    """Place, path, what was expected, and the nearest word."""
    with pytest.raises(BadFile) as bad:
        load(text, Shapes, name="f")
    assert [str(p) for p in bad.value.problems] == [
        e.replace("f:1:1: must: field", "f:1:1: field") if e.startswith("f:1:1: must:") else e for e in sorted(expected, key=lambda e: "unknown" in e)
    ]


def test_a_list_entry_of_two_shapes_is_complained_about_where_it_is():
    """Whatever shape was meant, the line is right."""
    with pytest.raises(BadFile) as bad:
        load("must: 1\ndeep:\n  k:\n    - alpha: 1\n    - beta: [three]\n", Shapes, name="f")
    assert {p.line for p in bad.value.problems} == {5}
