"""Volatile lines leave the system prompt, stand behind the message with which they came, and stay there."""
from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from gateway.normalize import Memory
from gateway.normalize.volatile_last import LABEL
from tests.normalize.views import assistant, run, system, user

RULES = "You are a careful helper.\nFollow the manual, version 2024-01-01.\n"


def sent(memory: Memory, request: dict[str, Any], dialect: str = "openai_chat", **more: Any) -> Any:
    return json.loads(run(memory, request, "relocating", dialect, **more).body)


def chat(clock: str, *said: Any) -> dict[str, Any]:
    return {"messages": [system(f"{RULES}Current time: {clock}\nBe brief."), *said]}


def test_a_conversation_only_grows_at_its_end() -> None:
    """Though its clock ticks: the time stands where it was said, and what is new about it comes last."""
    memory, talk = Memory(), [user("one"), assistant("two"), user("three"), assistant("four"), user("five")]
    turns = [sent(memory, chat(clock, *talk[:n]))["messages"] for clock, n in (("10:00", 1), ("10:05", 3), ("10:05", 5))]
    assert turns[0][0]["content"] == RULES + "Be brief."
    assert turns[0][1]["content"] == f"one\n\n{LABEL}\nCurrent time: 10:00"
    for before, after in pairwise(turns):
        assert after[: len(before)] == before
    assert turns[1][-1]["content"] == f"three\n\n{LABEL}\nCurrent time: 10:05"
    assert turns[2][-1]["content"] == "five"


def test_two_conversations_share_the_system_prompt() -> None:
    memory = Memory()
    first, second = (sent(memory, chat(clock, user(text)))["messages"] for clock, text in (("10:00", "a"), ("10:01", "b")))
    assert first[0] == second[0]


def test_a_message_that_says_nothing_else_goes_whole() -> None:
    """Whether other instructions stand beside it or not."""
    memory = Memory()
    for clock, talk in (("10:00", [user("one")]), ("10:05", [user("one"), assistant("two"), user("three")])):
        for rules in ([], [system([{"type": "text", "text": RULES}])]):
            name = f"{len(rules)} one"
            asked = {"messages": [system(f"Current time: {clock}"), *rules, user(name), *talk[1:]]}
            found = sent(memory, asked)["messages"]
            carried = user(f"{name}\n\n{LABEL}\nCurrent time: 10:00") if talk[1:] else user(name)
            assert [*found[:-1], user(found[-1]["content"].partition("\n")[0])] == [
                *rules, *[carried, *talk[1:]][:-1], user((talk[-1] if talk[1:] else user(name))["content"])]  # fmt: skip
            assert found[-1]["content"].endswith(f"{LABEL}\nCurrent time: {clock}")


@pytest.mark.parametrize("level", ["lossless", "equivalent"])
def test_below_its_level_nothing_moves(level: str) -> None:
    assert run(Memory(), chat("10:00", user()), level).changes == []


@pytest.mark.parametrize("request_", [
    {"messages": [system([{"type": "text", "text": "Current time: 10:00"}]), user()]},
    chat("10:00", user(), assistant(), user()),
    {"messages": [system(RULES), user()]},
    {"messages": [{**system(f"{RULES}Current time: 10:00"), "cache_control": {"type": "ephemeral"}}, user()]},
    {"messages": [system(f"{RULES}Current time: 10:00")]},
    {"messages": [user(f"{RULES}Current time: 10:00")]},
])  # fmt: skip
def test_what_goes_on_as_it_came(request_: dict[str, Any]) -> None:
    """Nothing would be left; under way when we met it; nothing volatile; marked; nobody has spoken; not an instruction."""
    assert run(Memory(), request_, "relocating").changes == []


def test_a_message_that_nothing_can_be_put_behind_is_told() -> None:
    """With a receipt, and the system prompt stays whole."""
    done = run(Memory(), chat("10:00", {"role": "user", "content": None}), "relocating")
    assert [change.receipt["left"] for change in done.changes] == ["no message that volatile text can be put behind"]


@pytest.mark.parametrize(("dialect", "request_", "place", "carried"), [
    ("anthropic_messages", {"max_tokens": 1, "system": RULES + "Today's date: 2026-11-30", "messages": [user()]}, ("messages", 0, "content"),
     f"hi\n\n{LABEL}\nToday's date: 2026-11-30"),
    ("anthropic_messages", {"max_tokens": 1, "system": [{"type": "text", "text": RULES + "Today's date: 2026-11-30"}],
                            "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x", "cache_control": {"type": "ephemeral"}}]}]},
     ("messages", 0, "content", 1), {"type": "text", "text": f"{LABEL}\nToday's date: 2026-11-30"}),
    ("openai_responses", {"instructions": RULES + "Request id: 7f3a9", "input": "x"}, ("input",), f"x\n\n{LABEL}\nRequest id: 7f3a9"),
    ("openai_responses", {"instructions": RULES + "Request id: 7f3a9", "input": [user(), {"type": "function_call", "call_id": "1"},
                                                                                   {"type": "function_call_output", "call_id": "1", "output": "o"}]}, None, None),
    ("openai_responses", {"instructions": RULES + "nonce=8891", "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]},
     ("input", 0, "content", 1), {"type": "input_text", "text": f"{LABEL}\nnonce=8891"}),
    ("openai_chat", {"messages": [{"role": "developer", "content": [{"type": "text", "text": RULES + "Turn: 3"}]}, user("é\u2028\"")]},
     ("messages", 1, "content"), f"é\u2028\"\n\n{LABEL}\nTurn: 3"),
])  # fmt: skip
def test_every_dialect_has_its_place(dialect: str, request_: dict[str, Any], place: tuple[Any, ...] | None, carried: Any) -> None:
    """Behind the last message, what the client marked untouched; a conversation under way stays as it is."""
    done = sent(Memory(), request_, dialect)
    if place is None:
        assert done == {"model": "m", **request_}
        return
    for step in place:
        done = done[step]
    assert done == carried


def test_the_state_of_a_repository_moves_whole() -> None:
    text = f"{RULES}\ngitStatus:\nCurrent branch: main\n M app.py\n?? new.py\n\nBe brief."
    found = sent(Memory(), {"messages": [system(text), user()]})["messages"]
    assert found[0]["content"] == f"{RULES}\n\nBe brief."
    assert found[1]["content"].endswith("gitStatus:\nCurrent branch: main\n M app.py\n?? new.py")


def test_what_varies_is_learnt() -> None:
    """After three values of one line; a conversation that began before keeps it where it was."""
    memory, line = Memory(), RULES + "You speak with customer 0{} today.\nBe brief."
    first = [sent(memory, {"messages": [system(line.format(n)), user(f"c{n}")]})["messages"][0]["content"] for n in range(3)]
    assert first[:2] == [line.format(0), line.format(1)]
    assert first[2] == RULES + "Be brief."
    again = sent(memory, {"messages": [system(line.format(0)), user("c0"), assistant(), user()]})["messages"]
    assert again[0]["content"] == line.format(0)


def test_a_list_of_like_lines_is_no_slot() -> None:
    memory, rules = Memory(), RULES + "".join(f"Rule {n} holds.\n" for n in range(9))
    for n in range(5):
        assert run(memory, {"messages": [system(rules), user(str(n))]}, "relocating").changes == []


def test_a_tool_result_carries_what_is_new() -> None:
    memory = Memory()
    sent(memory, chat("10:00", user()))
    tool = {"role": "tool", "tool_call_id": "1", "content": "done"}
    found = sent(memory, chat("10:01", user(), assistant(), tool))["messages"]
    assert found[-1]["content"] == f"done\n\n{LABEL}\nCurrent time: 10:01"


def test_what_changes_leaves_from_then_on_whatever_it_says() -> None:
    """And the prompt that stays is the same from then on; the conversation only grows."""
    memory, talk = Memory(), [user("one"), assistant("two"), user("three"), assistant("four"), user("five"), assistant("six"), user("seven")]
    tails = ("Keep calm.", "Mind the gap.", "Mind the gap.", "Hurry!")
    turns = [sent(memory, {"messages": [system(f"{RULES}\n{tail}"), *talk[: 2 * n + 1]]})["messages"] for n, tail in enumerate(tails)]
    assert turns[0][0]["content"] == f"{RULES}\nKeep calm."
    assert {turn[0]["content"] for turn in turns[1:]} == {RULES.rstrip("\n")}
    for before, after in pairwise(turns[1:]):
        assert after[: len(before)] == before
    assert [turn[-1]["content"] for turn in turns[1:]] == [f"three\n\n{LABEL}\nMind the gap.", "five", f"seven\n\n{LABEL}\nHurry!"]


def test_what_no_message_can_carry_stays_where_it_is() -> None:
    """In a later turn too: nothing that the client says is lost."""
    memory = Memory()
    sent(memory, chat("10:00", user()))
    odd = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "done"}]}
    later = chat("10:01", user(), assistant(), odd)
    assert sent(memory, later) == {"model": "m", **later}
