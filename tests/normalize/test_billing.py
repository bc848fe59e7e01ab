"""The billing line of a well-known client goes to its own provider only."""
from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.normalize import Memory
from tests.normalize.views import assistant, run, user

LINE = "x-anthropic-billing-header: cc_version=9.9.{0}; cc_entrypoint=cli; cch={0};"
RULES = {"type": "text", "text": "Follow the manual."}


def messages(system: Any, *said: Any) -> dict[str, Any]:
    return {"max_tokens": 9, "system": system, "messages": list(said) or [user()]}


@pytest.mark.parametrize(("dialect", "request_", "left"), [
    ("anthropic_messages", messages([{"type": "text", "text": LINE.format("a")}, RULES]), messages([RULES])),
    ("anthropic_messages", messages([RULES, {"type": "text", "text": LINE.format("a")}]), messages([RULES])),
    ("anthropic_messages", messages([{"type": "text", "text": LINE.format("a")}]), messages([])),
    ("anthropic_messages", messages(LINE.format("a") + "\nBe brief."), messages("Be brief.")),
    ("openai_chat", {"messages": [{"role": "system", "content": LINE.format("a")}, user()]}, {"messages": [user()]}),
    ("openai_chat", {"messages": [{"role": "system", "content": "A.\n" + LINE.format("a") + "\nB."}, user()]},
     {"messages": [{"role": "system", "content": "A.\nB."}, user()]}),
    ("openai_responses", {"instructions": LINE.format("a") + "\nBe.", "input": "x"}, {"instructions": "Be.", "input": "x"}),
])  # fmt: skip
def test_it_is_dropped_on_the_way_elsewhere(dialect: str, request_: dict[str, Any], left: dict[str, Any]) -> None:
    done = run(Memory(), request_, "equivalent", dialect)
    assert json.loads(done.body) == {"model": "m", **left}
    assert [change.receipt["pass"] for change in done.changes] == ["client_billing"]


def test_every_turn_is_the_same_without_it() -> None:
    """Also in a conversation that is met in the middle: the line differs anyway."""
    memory, talk = Memory(), [user(), assistant(), user()]
    turns = [run(memory, messages([{"type": "text", "text": LINE.format(n)}, RULES], *talk), "equivalent", "anthropic_messages").body for n in "abc"]
    assert len(set(turns)) == 1


@pytest.mark.parametrize(("level", "native", "system"), [
    ("lossless", False, [{"type": "text", "text": LINE.format("a")}]),
    ("equivalent", True, [{"type": "text", "text": LINE.format("a")}]),
    ("equivalent", False, [{"type": "text", "text": LINE.format("a"), "cache_control": {"type": "ephemeral"}}]),
    ("equivalent", False, [{"type": "text", "text": f"The line `{LINE.format('a')}` is dropped."}]),
])  # fmt: skip
def test_it_stays(level: str, native: bool, system: Any) -> None:
    """Below the level, at its own provider, where the client marked it, and where a text only speaks of it."""
    assert run(Memory(), messages(system), level, "anthropic_messages", native=lambda: native).changes == []


@pytest.mark.parametrize("headers", [{"anthropic-beta": "x,oauth-2025-04-20"}, {"chatgpt-account-id": "1"}])
def test_subscription_clients_are_left_alone(headers: dict[str, str]) -> None:
    (note,) = run(Memory(), messages([{"type": "text", "text": LINE.format("a")}]), "relocating", "anthropic_messages", headers=headers).changes
    assert note.receipt["left"] == "a subscription client's"
