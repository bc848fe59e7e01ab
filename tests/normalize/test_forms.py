"""Which JSON is the same, at which level, and that remembering it stays small."""
from __future__ import annotations

import pytest

from gateway.normalize import forms
from gateway.normalize.forms import Forms, canonical, name_of


@pytest.mark.parametrize(("one", "other", "strictly", "as_sets"), [
    (b'[{"a":1,"b":2}]', b'[ {"a" : 1, "b":2}]', True, True),
    (b'[{"a":1,"b":2}]', b'[{"b":2,"a":1}]', False, True),
    (b'[{"name":"a"},{"name":"b"}]', b'[{"name":"b"},{"name":"a"}]', False, True),
    (b'[{"type":"x"},{"type":"y"}]', b'[{"type":"y"},{"type":"x"}]', False, True),
    (b'[{"name":"a","v":1},{"name":"a","v":2}]', b'[{"name":"a","v":2},{"name":"a","v":1}]', False, False),
    (b'[{"required":["a","b"]}]', b'[{"required":["b","a"]}]', False, False),
    (b'[{"v":1}]', b'[{"v":1.0}]', False, False),
])  # fmt: skip
def test_kinds(one: bytes, other: bytes, strictly: bool, as_sets: bool) -> None:
    assert (canonical(one, sets=False) == canonical(other, sets=False)) is strictly
    assert (canonical(one, sets=True) == canonical(other, sets=True)) is as_sets


@pytest.mark.parametrize("value", [b"{}", b"[1]", b'["x"]', b"[", b"null"])
def test_what_is_no_list_of_objects_has_no_kind(value: bytes) -> None:
    assert canonical(value, sets=True) is None


def test_names_in_every_dialect() -> None:
    assert name_of({"function": {"name": "f"}}) == "f" == name_of({"name": "f"})
    assert name_of({"type": "web_search"}) == name_of({"type": "web_search", "name": 3})


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was used longest ago is forgotten; the first form of its kind is then the next that comes."""
    monkeypatch.setattr(forms, "_MAX_BYTES", 5_000)
    memory = Forms()
    for n in range(100):
        value = b'[{"name":"%d"}]' % n + b" " * 100
        found = memory.kind("t", value, sets=True)
        assert found is not None
        memory.first(found[1], found[0], value)
    assert memory._bytes <= 5_000
    old = b'[ {"name":"0"}]'
    found = memory.kind("t", old, sets=True)
    assert found is not None
    assert memory.first(found[1], found[0], old) == found[0]
