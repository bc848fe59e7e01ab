"""Why a prompt was missed: what changed, where, and what it cost; never a word about another domain's prompts."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.explain import MUTATIONS, SESSIONS, run
from gateway import dialects
from gateway.dialects.parts import conversation
from gateway.ledger.misses import ADVICE
from gateway.prefix.chain import Chain, chain
from gateway.prefix.explain import Miss, explain
from gateway.prefix.history import History, Sent

RULES = "You are a careful helper of the harbour office.\nKeep to the manual.\nSay what you do before you do it.\n" * 5


def made(request: dict[str, Any], domain: str, dialect: str) -> tuple[Chain, bytes]:
    body = json.dumps({"model": "m", "max_tokens": 9, **request}).encode()
    parts = dialects.read(dialect, body).parts
    return chain(domain, "m", parts, conversation(domain, "m", body, parts).id), body


def sent(request: dict[str, Any], domain: str = "team", dialect: str = "openai_chat", **more: Any) -> Sent:
    links, body = made(request, domain, dialect)
    how: dict[str, Any] = {"pool": "pool", "provider": "openai", "at_us": 1_000_000, "tokens": 12_000, "ttl_s": 300.0, **more}
    return Sent(domain=domain, chain=links, model="m", body=body, **how)


def note(history: History, request: dict[str, Any], domain: str = "team", dialect: str = "openai_chat") -> None:
    history.note(sent(request, domain, dialect, at_us=0, tokens=10_000))


def ask(history: History, request: dict[str, Any], domain: str = "team", dialect: str = "openai_chat", read: int = 0, **more: Any) -> Miss | None:
    return explain(history, sent(request, domain, dialect, **more), read)


def talk(*texts: str, system: str = RULES) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, *({"role": ("user", "assistant")[n % 2], "content": t} for n, t in enumerate(texts))]}


@pytest.mark.skipif(not SESSIONS.exists(), reason="the recorded sessions are not here")
def test_what_was_injected_into_real_sessions_is_found() -> None:
    """Place and kind right in at least 95 % of more than 20 kinds."""
    sessions = [json.loads(line) for line in Path(SESSIONS).read_text().splitlines()][:4]
    found = run(sessions, seed=3)
    assert found["kinds"] >= 20
    assert found["kind_right"] >= 0.95, found["wrong"]
    assert found["place_right"] >= 0.95, found["wrong"]


def test_every_kind_has_advice() -> None:
    assert {kind.replace("tool_edit", "edit") for kind in MUTATIONS} <= set(ADVICE)


def test_a_clock_costs_what_would_have_been_read() -> None:
    history = History()
    note(history, talk("hi", "yes?", system=RULES + "Current time: 10:00"))
    found = ask(history, talk("hi", "yes?", "more", system=RULES + "Current time: 10:05"))
    assert found is not None
    assert (found.kind, found.path) == ("timestamp", "/messages/0/content")
    text = RULES + "Current time: 10:05"
    assert text[found.start:found.end] == "10:05"
    assert 11_000 < found.would_hit_tokens == found.lost_tokens < 12_000


@pytest.mark.parametrize(("dialect", "first", "second", "kind", "path"), [
    ("anthropic_messages", {"system": [{"type": "text", "text": RULES}, {"type": "text", "text": "Request id: r1"}], "messages": [{"role": "user", "content": "x"}]},
     {"system": [{"type": "text", "text": RULES}, {"type": "text", "text": "Request id: r2"}], "messages": [{"role": "user", "content": "x"}]}, "id", "/system/1/text"),
    ("anthropic_messages", {"system": RULES, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
     {"system": RULES.replace("manual", "book", 1), "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, "edit", "/system"),
    ("openai_responses", {"instructions": RULES, "input": "x", "text": {"verbosity": "low"}}, {"instructions": RULES, "input": "x", "text": {"verbosity": "high"}},
     "settings", "/text"),
    ("openai_responses", {"input": [{"role": "user", "content": RULES}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"path\": \"x.py\", \"view\": 2}"}, {"type": "function_call_output", "call_id": "1", "output": "done"}]},
     {"input": [{"role": "user", "content": RULES}, {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"view\": 2, \"path\": \"x.py\"}"}, {"type": "function_call_output", "call_id": "1", "output": "done"}]},
     "history_edit", "/input/1/arguments"),
])  # fmt: skip
def test_every_dialect(dialect: str, first: dict[str, Any], second: dict[str, Any], kind: str, path: str) -> None:
    history = History()
    note(history, first, dialect=dialect)
    found = ask(history, second, dialect=dialect)
    assert found is not None
    assert (found.kind, found.path) == (kind, path)


def test_what_is_no_miss() -> None:
    """The first of its kind; what was there was read; another conversation that shares its beginning and read that."""
    history = History()
    assert ask(history, talk("hi")) is None
    note(history, talk("hi"))
    assert ask(history, talk("hi", "yes?", "more"), read=9_000) is None
    assert ask(history, talk("quite another question, of which nobody has heard")) is None


def test_domains_never_meet() -> None:
    history = History()
    note(history, talk("hi", system=RULES + "Current time: 10:00"), "one")
    assert ask(history, talk("hi", system=RULES + "Current time: 10:05"), "two") is None


def test_a_prompt_that_only_went_on_was_lost_elsewhere() -> None:
    """Another lane, too late, too short, or let go."""
    history, longer = History(), talk("hi", "yes?", "more")
    note(history, talk("hi"))
    kinds = {}
    for name, how in {"other_lane": {"pool": "else"}, "expiry": {"at_us": 400_000_000}, "dropped": {}, "below_minimum": {}}.items():
        if name == "below_minimum":
            history.note(sent(talk("hi"), at_us=0, tokens=900))
        found = ask(history, longer, **how)
        assert found is not None
        kinds[name] = found.kind
    assert all(name == kind for name, kind in kinds.items())
