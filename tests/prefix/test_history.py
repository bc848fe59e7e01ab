"""Earlier prompts are kept as outlines, once each, within bounds."""
from __future__ import annotations

import pytest

from gateway.prefix import outline
from gateway.prefix.explain import explain
from gateway.prefix.history import History, split_tools
from tests.prefix.test_explain import RULES, note, sent, talk


def test_the_usual_turn_is_not_looked_into() -> None:
    history = History()
    note(history, talk("hi"))
    after = talk("hi", "yes?")
    assert not history.worth(sent(after), 9_000)
    assert history.worth(sent(after), 1_000)
    assert history.worth(sent(after, "other"), 9_000)


def test_shared_parts_are_kept_once_and_no_text_is() -> None:
    history = History()
    note(history, talk("one"))
    first = history.bytes
    note(history, talk("two"))
    assert history.bytes - first < first
    assert b"harbour" not in repr(vars(history)).encode()


def test_memory_is_bounded() -> None:
    history = History(60_000)
    for n in range(300):
        note(history, talk(f"question {n} " * 20, system=f"{n} " + RULES))
        assert history.bytes <= 60_000
    assert 0 < len(history) < 100
    assert len(history._seen) <= len(history._outlines)


def test_nothing_is_kept_where_nothing_shall_be() -> None:
    history = History(0)
    note(history, talk("one"))
    assert (len(history), history.bytes) == (0, 0)
    assert not history.worth(sent(talk("one")), 0)


def test_a_part_is_taken_apart_once_for_all_that_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new part is compared with the earlier one, looked at for likeness, and kept."""
    taken: list[bytes] = []

    def look(value: bytes, pause: object) -> outline.Looked:
        taken.append(value)
        return outline.look(value)

    monkeypatch.setattr("gateway.prefix.history.look", look)
    history = History()
    note(history, talk("one"))
    taken.clear()
    after = talk("one", system=RULES.replace("harbour", "port"))
    assert explain(history, sent(after), read=0) is not None
    note(history, after)
    assert len(taken) == len(set(taken)) == 1
    assert not history._looked


def test_tools_one_by_one() -> None:
    found = split_tools(b'[{"name":"a"}, {"type":"function","function":{"name":"b"}},{"type":"web"}]')
    assert [name for name, _, _ in found] == ["a", "b", "web"]
    assert split_tools(b'[{"name":1}]') == split_tools(b"[1]") == split_tools(b"{}") == []
