from decimal import Decimal
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from router_policies.strict_yaml import MAX_BYTES, BadFile, load, nearest


class Inner(BaseModel):
    words: tuple[str, ...] = ()
    count: int = 0


class Sample(BaseModel):
    name: str = "x"
    share: float = Field(default=0.0, ge=0, le=1)
    on: bool = False
    money: Decimal = Decimal(0)
    level: Literal["fast", "standard"] = "fast"
    inner: Inner = Inner()
    either: dict[str, Inner | str] | list[str] = []
    key: str = "env:X"

    @field_validator("key")
    @classmethod
    def _reference(cls, text: str) -> str:
        if not text.startswith("env:"):
            raise ValueError("must be a reference")
        return text


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))


@pytest.mark.parametrize(("text", "line", "says"), [
    pytest.param("", 1, "is empty", id="empty"),
    pytest.param("- a\n", 1, "must be a mapping", id="a list"),
    pytest.param("name: a\nnmae: b\n", 2, "did you mean `name`?", id="unknown field"),
    pytest.param("inner:\n  cuont: 1\n", 2, "did you mean `count`?", id="unknown field inside"),
    pytest.param("level: fsat\n", 1, "did you mean `fast`?", id="unknown word"),
    pytest.param("on: yes\n", 1, "write true", id="yes is no boolean"),
    pytest.param("on: 1\n", 1, "must be true or false, is a number", id="1 is not true"),
    pytest.param("inner: {count: true}\n", 1, "must be a whole number, is true or false", id="true is not 1"),
    pytest.param("inner: {count: '5'}\n", 1, "must be a whole number, is text", id="text is no number"),
    pytest.param("inner: {count: 1.0}\n", 1, "must be a whole number, is a number", id="1.0 is no whole number"),
    pytest.param("inner: {words: a}\n", 1, "must be a list, is text", id="text is no list"),
    pytest.param("name:\n", 1, "must be text, is empty", id="nothing there"),
    pytest.param("share: 2\n", 1, "must be at most 1", id="bounds"),
    pytest.param("share: .nan\n", 1, "finite", id="no number"),
    pytest.param("share: 1e999\n", 1, "finite", id="infinite in disguise"),
    pytest.param("name: a\nname: b\n", 2, "stands here twice; the first is on line 1", id="doubled key"),
    pytest.param("name: a\n'name': b\n", 2, "twice", id="doubled key in quotes"),
    pytest.param(BOMB, 2, "alias", id="alias bomb"),
    pytest.param("name: !!python/object/apply:os.getcwd []\n", 1, "tag", id="tag"),
    pytest.param("name: !!str a\n", 1, "tag", id="harmless tag"),
    pytest.param("%YAML 1.1\n---\nname: a\n", 2, "directive", id="directive"),
    pytest.param("name: a\n---\nname: b\n", 2, "more than one document", id="two documents"),
    pytest.param("<<: {name: a}\n", 1, "unknown field", id="merge key"),
    pytest.param("? [a]\n: 1\n", 1, "not a plain name", id="odd key"),
    pytest.param("name: a\ninner: {count: [" + "[" * 40 + "]" * 40 + "]}\n", 2, "nested deeper than 32", id="too deep"),
    pytest.param("name: \"a\\u202Eb\"\n", 1, "text-direction", id="direction mark"),
    pytest.param("name: a\x07\n", 1, "forbids", id="control character"),
    pytest.param("name: a\n\ton: true\n", 2, "indent with spaces", id="tab"),
    pytest.param("name: a\nlev", 2, "not YAML", id="cut in the middle of a key"),
    pytest.param("name: a\ninner: {count: 1\n", 2, "not closed", id="cut in a bracket"),
    pytest.param("name: 'a\n\n\n", 1, "not closed", id="cut in a quote"),
    pytest.param("either: 5\n", 1, "must be a mapping or a list, is a number", id="one of two shapes"),
    pytest.param("either: {a: {cnt: 1}}\n", 1, "did you mean `count`?", id="inside one of two shapes"),
])
def test_a_mistake_is_named_with_its_line(text, line, says):
    """One mistake, one message, at its place, and never a stack trace."""
    with pytest.raises(BadFile) as bad:
        load(text, Sample, name="f.yaml")
    assert any(p.line == line and says in str(p) for p in bad.value.problems), str(bad.value)
    assert "pydantic" not in str(bad.value)
    assert "Traceback" not in str(bad.value)


def test_all_mistakes_are_told_at_once():
    """Nobody wants to fix a file one message at a time."""
    with pytest.raises(BadFile) as bad:
        load("name: 1\nlevel: fsat\nshare: 7\nshare: 8\nextra: 1\n", Sample, name="f.yaml")
    assert [p.line for p in bad.value.problems] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("text", ["key: sk-secret\n", "level: sk-secret\n", "share: sk-secret\n", "name: [sk-secret]\n", "key: sk-secret\nkey: sk-secret\n", "money: sk-secret\n", "either: {a: {count: sk-secret}}\n"])
def test_a_value_never_gets_into_a_message(text):
    """It may be a secret that was put in the wrong place."""
    with pytest.raises(BadFile) as bad:
        load(text, Sample)
    assert "secret" not in str(bad.value)


def test_good_values_arrive_typed():
    """Lists become tuples and decimal text becomes a decimal; nothing else changes its type."""
    got = load("name: off\nshare: 1\non: true\nmoney: '5.10'\ninner: {words: [a, 'b'], count: 3}\neither: {a: b, c: {count: 1}}\n", Sample)
    assert got == Sample(name="off", share=1.0, on=True, money=Decimal("5.10"), inner=Inner(words=("a", "b"), count=3), either={"a": "b", "c": Inner(count=1)})


@pytest.mark.parametrize(("raw", "line", "says"), [
    (b"name: a\nkey: \xff\n", 2, "is not UTF-8"), ("name: a".encode("utf-16"), 1, "UTF-8"), (b"#" * (MAX_BYTES + 1), 1, "larger than"),
])
def test_bytes_must_be_small_and_utf8(tmp_path: Path, raw, line, says):
    """A byte order mark is fine, another encoding is not."""
    (tmp_path / "f.yaml").write_bytes(raw)
    with pytest.raises(BadFile) as bad:
        load(tmp_path / "f.yaml", Sample)
    assert [(p.line, says in p.message) for p in bad.value.problems] == [(line, True)]
    (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfname: a\r\non: true\r\n")
    assert load(tmp_path / "f.yaml", Sample).on


def test_what_is_no_file_is_a_bad_file(tmp_path: Path):
    """Missing files and folders are problems like any other."""
    for path in (tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(BadFile, match=str(path)):
            load(path, Sample)


def test_nearest_is_offered_for_other_loaders():
    """settings.py uses it for names that are no fields."""
    assert nearest("opnai", ["openai", "anthropic"]) == "openai"
