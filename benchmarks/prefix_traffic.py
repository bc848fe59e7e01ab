"""Timed requests made of recorded agent sessions: plain, and with each way in which apps spoil their own prefixes.

A family is one app's traffic: sessions begin one after another and overlap, turns follow each other after some seconds (or,
in the families with gaps, after up to two hours). All randomness comes from fixed seeds, so two runs are the same.
"""
from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import prefix_texts as texts
from gateway.demo.sessions import Session

Json = dict[str, Any]
_BETWEEN_SESSIONS_S, _TURN_S = 90.0, (3.0, 40.0)
_SEED = 20261130
_UNMARKABLE = ("thinking", "redacted_thinking")


@dataclass(frozen=True, slots=True)
class Timed:
    """One request. `clean`: the same without what the family spoils, for the oracle."""

    at_s: float
    body: Json
    clean: Json
    session: int
    wires: dict[tuple[str, int], bytes] = field(default_factory=dict, compare=False, repr=False)
    """What has been written of the two for a provider."""


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    says: str
    level: str
    """Of normalization, which may cure it; `lossless` where there is nothing to cure."""
    spoil: Callable[[Json, random.Random, int], Json] | None = None
    gaps: bool = False
    fan_out: int = 1


def _clock_line(body: Json, rng: random.Random, turn: int) -> Json:
    time = f"2026-11-30T{rng.randrange(24):02}:{rng.randrange(60):02}:{turn:02}Z"
    return _with_system(body, lambda text: f"{text}\nCurrent time: {time}")


def _nonce(body: Json, rng: random.Random, turn: int) -> Json:
    return _with_system(body, lambda text: f"x-request-id: {rng.getrandbits(64):016x}\n{text}")


def _git_state(body: Json, rng: random.Random, turn: int) -> Json:
    files = "\n".join(f" M src/module_{rng.randrange(40)}.py" for _ in range(1 + turn % 4))
    state = f"gitStatus: branch main\nStatus:\n{files}\nRecent commits:\n{rng.getrandbits(28):07x} wip"
    return _with_system(body, lambda text: f"{text}\n\n{state}")


def _edited_tail(body: Json, rng: random.Random, turn: int) -> Json:
    return _with_system(body, lambda text: f"{text}\n\nRemember: you are at step {turn + 1}; {rng.choice(_MOODS)}.")


def _other_clock(body: Json, rng: random.Random, turn: int) -> Json:
    return _with_system(body, lambda text: f"{text}\n\n{texts.clock(rng, len(text))}")


def _other_nonce(body: Json, rng: random.Random, turn: int) -> Json:
    return _with_system(body, lambda text: f"{texts.nonce(rng, turn, len(text))}\n{text}")


def _other_repository(body: Json, rng: random.Random, turn: int) -> Json:
    return _with_system(body, lambda text: f"{text}\n\n{texts.repository(rng, turn, len(text))}\n\nNever push.")


def _other_tail(body: Json, rng: random.Random, turn: int) -> Json:
    return _with_system(body, lambda text: f"{text}\n\n{texts.tail(rng, turn, len(text))}")


def _shuffled(body: Json, rng: random.Random, turn: int) -> Json:
    tools = list(body.get("tools", ()))
    rng.shuffle(tools)
    return {**body, **({"tools": tools} if tools else {})}


_MOODS = ("be brief", "be careful", "think first", "do not repeat yourself")

FAMILIES: tuple[Family, ...] = (
    Family("plain", "as recorded", "lossless"),
    Family("clock line", "the time at the end of the system prompt", "relocating", _clock_line),
    Family("shuffled tools", "another order of the tools in each request", "equivalent", _shuffled),
    Family("nonce", "a fresh id at the start of the system prompt", "relocating", _nonce),
    Family("git state", "git status at the end of the system prompt, changing", "relocating", _git_state),
    Family("edited tail", "the system prompt's last line changes with each step", "relocating", _edited_tail),
    Family("other clock", "the time in six other forms and languages", "relocating", _other_clock),
    Family("other nonce", "tokens without a label that says so", "relocating", _other_nonce),
    Family("other repository", "changed files in other words, before the last paragraph", "relocating", _other_repository),
    Family("other tail", "last lines that say something else in each turn", "relocating", _other_tail),
    Family("uneven gaps", "turns follow after seconds up to two hours", "lossless", gaps=True),
    Family("fan-out", "each session's first request ten times at once, with other last lines", "lossless", fan_out=10),
    Family("one-shot", "only the first request of each session, and none comes again", "lossless"),
    Family("own marks", "the client marks its prompts itself", "lossless"),
)


def traffic(family: Family, sessions: Sequence[Session], rounds: int = 1, day: int = 0) -> list[Timed]:
    """The family's requests in order of time; on another day the same happens by other chances."""
    rng = random.Random(f"{_SEED}{f'-{day}-' if day else ''}{family.name}")
    timed: list[Timed] = []
    for number, session in enumerate(list(sessions) * rounds):
        at_s = number * _BETWEEN_SESSIONS_S * (rng.uniform(2, 20) if family.gaps else 1)
        timed += _session(family, session, number, at_s, rng)
    return sorted(timed, key=lambda one: one.at_s)


def marked_by_client(body: Json) -> Json:
    """An Anthropic body as careful clients send it: marks behind the system prompt and the last two messages of the user."""
    body = copy.deepcopy(body)
    users = [message for message in body["messages"] if message["role"] == "user"][-2:]
    if isinstance(body.get("system"), str):
        body["system"] = [{"type": "text", "text": body["system"]}]
    lists = [body["system"]] if body.get("system") else []
    for message in users:
        if isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
        lists.append(message["content"])
    for blocks in lists:
        last = blocks[-1] if blocks else {}
        if last.get("type") not in (None, *_UNMARKABLE) and last.get("text") != "":
            last["cache_control"] = {"type": "ephemeral"}
    return body


def _session(family: Family, session: Session, number: int, at_s: float, rng: random.Random) -> Iterator[Timed]:
    turns = range(len(session.turns)) if family.name != "one-shot" else range(1)
    for turn in turns:
        clean = _signed(session.body(turn), f"{family.name} {number}")
        body = clean if family.spoil is None else family.spoil(clean, rng, turn)
        for copy_ in range(family.fan_out if turn == 0 else 1):
            last = f"\nVariant {copy_}." if family.fan_out > 1 and turn == 0 else ""
            yield Timed(at_s, _with_last(body, last), _with_last(clean, last), number)
        at_s += _gap_s(rng) if family.gaps else rng.uniform(*_TURN_S)


def _gap_s(rng: random.Random) -> float:
    """Three in five go on at once, the others after minutes or up to two hours."""
    draw = rng.random()
    if draw < 0.6:
        return rng.uniform(5, 60)
    return rng.uniform(60, 900) if draw < 0.85 else rng.uniform(900, 7200)


def _signed(body: Json, name: str) -> Json:
    """A session of its own: the same task in another round, or family, is another conversation."""
    messages = list(body["messages"])
    for index, message in enumerate(messages):
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            messages[index] = {**message, "content": f"[task {name}]\n{message['content']}"}
            break
    return {**body, "messages": messages}


def _with_last(body: Json, text: str) -> Json:
    if not text:
        return body
    return {**body, "messages": [*body["messages"], {"role": "user", "content": text.strip()}]}


def _with_system(body: Json, change: Callable[[str], str]) -> Json:
    messages = body["messages"]
    if not messages or messages[0].get("role") != "system" or not isinstance(messages[0].get("content"), str):
        return {**body, "messages": [{"role": "system", "content": change("")}, *messages]}
    return {**body, "messages": [{**messages[0], "content": change(messages[0]["content"])}, *messages[1:]]}
