"""Are misses explained rightly? Known changes are made to real agent sessions; place and kind must be found again.

    python -m benchmarks.explain [--sessions FILE] [--seed 1] [--json]

Each case sends one turn of a session and then the next one with one thing changed, and asks why nothing was read. The kind is
right if it is the one that was injected. The place is right if its path is, and where a text was changed, if the range
begins no more than 80 characters before the first changed character, covers it, and is no more than 160 characters
longer than the change. What the gateway keeps of the first turn are outlines, never its text.
"""
from __future__ import annotations

import copy
import json
import random
import time
import unicodedata
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from gateway import dialects
from gateway.dialects.parts import conversation
from gateway.prefix.chain import chain
from gateway.prefix.explain import Miss, explain
from gateway.prefix.history import History, Sent

Json = dict[str, Any]
SESSIONS = Path(__file__).parents[2] / "shared" / "data" / "agent_sessions.jsonl"
_BEFORE, _LONGER = 80, 160
_TURN_US, _TTL_S = 30_000_000, 300.0


@dataclass
class Case:
    """Two requests of a session, the second with something changed, and what should be found."""

    first: Json
    second: Json
    path: str = ""
    text: tuple[str, str] | None = None
    """The text at `path` before and after, where a text was changed."""
    call: Json = field(default_factory=dict)
    """How the second call differs otherwise."""
    kind: str = ""


Mutation = Callable[[Case, random.Random], None]


def _system(line: Callable[[int], str]) -> Mutation:
    """A line of the system prompt that is another one in the second call; at its start, somewhere in it, or at its end."""

    def mutate(case: Case, rng: random.Random) -> None:
        lines = case.first["messages"][0]["content"].split("\n")
        at = rng.choice([0, rng.randrange(len(lines) + 1), len(lines)])
        texts = ["\n".join([*lines[:at], line(n), *lines[at:]]) for n in (0, 1)]
        case.first["messages"][0]["content"], case.second["messages"][0]["content"] = texts
        case.path, case.text = "/messages/0/content", (texts[0], texts[1])

    return mutate


def _text(change: Callable[[str, random.Random], str], message: Callable[[Case, random.Random], int]) -> Mutation:
    def mutate(case: Case, rng: random.Random) -> None:
        at = message(case, rng)
        old = case.second["messages"][at]["content"]
        case.second["messages"][at]["content"] = new = change(old, rng)
        case.path, case.text = f"/messages/{at}/content", (old, new)

    return mutate


def _word(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    long = [n for n, word in enumerate(words) if word.isalpha() and len(word) > 3]
    words[rng.choice(long)] = rng.choice(["harbour", "lantern", "meadow"])
    return " ".join(words)


def _blanks(text: str, rng: random.Random) -> str:
    at = rng.choice([n for n, c in enumerate(text) if c == " "])
    return text[:at] + "  " + text[at:]


def _decomposed(case: Case, rng: random.Random) -> None:
    lines = case.first["messages"][0]["content"].split("\n")
    lines.insert(rng.randrange(len(lines)), "Réponds à Zoë en français.")
    old = "\n".join(lines)
    new = unicodedata.normalize("NFD", old)
    case.first["messages"][0]["content"], case.second["messages"][0]["content"] = old, new
    case.path, case.text = "/messages/0/content", (old, new)


def _shuffled(case: Case, rng: random.Random) -> None:
    tools = case.second["tools"]
    a, b = sorted(rng.sample(range(len(tools)), 2))
    tools[a], tools[b] = tools[b], tools[a]
    case.path = f"/tools/{a}"


def _added(case: Case, rng: random.Random) -> None:
    at = rng.randrange(len(case.second["tools"]) + 1)
    case.second["tools"].insert(at, {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}})
    case.path = f"/tools/{at}"


def _removed(case: Case, rng: random.Random) -> None:
    at = rng.randrange(len(case.second["tools"]))
    del case.second["tools"][at]
    case.path = f"/tools/{at}"


def _tool_edited(case: Case, rng: random.Random) -> None:
    described = [n for n, tool in enumerate(case.second["tools"]) if len(tool["function"].get("description", "")) > 60]
    at = rng.choice(described)
    function = case.second["tools"][at]["function"]
    old = function["description"]
    function["description"] = new = _word(old, rng)
    case.path, case.text = f"/tools/{at}/function/description", (old, new)


def _keys(case: Case, rng: random.Random) -> None:
    at = rng.randrange(len(case.second["tools"]))
    function = case.second["tools"][at]["function"]
    case.second["tools"][at]["function"] = dict(reversed(function.items()))
    case.path = f"/tools/{at}"


def _history(case: Case) -> range:
    """Messages behind the opening that both calls have."""
    return range(2, len(case.first["messages"]))


def _old_message(case: Case, rng: random.Random) -> int:
    texts = {n: case.second["messages"][n]["content"] for n in _history(case)}
    worded = [n for n, text in texts.items() if any(word.isalpha() and len(word) > 3 for word in (text or "").split(" "))]
    return rng.choice(worded)


def _cut(case: Case, rng: random.Random) -> None:
    del case.second["messages"][2:4]
    case.path = "/messages/2"


def _inserted(case: Case, rng: random.Random) -> None:
    at = rng.choice(list(_history(case)))
    case.second["messages"].insert(at, {"role": "user", "content": "By the way, mind the style guide of this repository."})
    case.path = f"/messages/{at}"


def _swapped(case: Case, rng: random.Random) -> None:
    messages, at = case.second["messages"], rng.choice(list(_history(case))[:-1])
    messages[at], messages[at + 1] = messages[at + 1], messages[at]
    case.path = f"/messages/{at}"


def _effort(case: Case, rng: random.Random) -> None:
    case.first["reasoning_effort"], case.second["reasoning_effort"] = "low", "high"
    case.path = "/reasoning_effort"


def _call(**how: Any) -> Mutation:
    def mutate(case: Case, rng: random.Random) -> None:
        case.call = how
        case.path = "/model" if "model" in how else ""

    return mutate


def _git(n: int) -> str:
    return f"gitStatus:\nCurrent branch: {('main', 'fix/lanes')[n]}\n M src/{('app', 'tolls')[n]}.py\n"


MUTATIONS: dict[str, Mutation] = {
    "timestamp": _system(lambda n: f"Current time: 2026-11-30T10:0{n}:1{n}Z"),
    "date": _system(lambda n: f"Today's date: November {29 + n}, 2026"),
    "id": _system(lambda n: f"Request id: {uuid.UUID(int=(n + 7) * 0x1234567890ABCDEF1234567890ABCDEF >> 4)}"),
    "counter": _system(lambda n: f"Turn number: {n + 4}"),
    "nonce": _system(lambda n: f"nonce={('8f3a9bd01c', '17c2e6f9aa')[n]}"),
    "git": _system(_git),
    "billing": _system(lambda n: f"x-anthropic-billing-header: cc_version=9.9.{'a1f9'[n * 2:]}; cch={('a1b2c', 'f9e8d')[n]};"),
    "whitespace": _text(_blanks, lambda case, rng: 0),
    "unicode": _decomposed,
    "edit": _text(_word, lambda case, rng: 0),
    "appended": _text(lambda text, rng: text + "\nAnswer in French from now on.", lambda case, rng: 0),
    "tool_order": _shuffled,
    "tool_added": _added,
    "tool_removed": _removed,
    "tool_edit": _tool_edited,
    "json_form": _keys,
    "history_edit": _text(_word, _old_message),
    "cut": _cut,
    "inserted": _inserted,
    "order": _swapped,
    "settings": _effort,
    "model": _call(model="another"),
    "expiry": _call(at_us=1_000_000_000 + 900_000_000),
    "other_lane": _call(pool="elsewhere"),
    "below_minimum": _call(tokens=700),
    "dropped": _call(),
}
"""Kind -> what makes one."""


def _sent(request: Json, model: str, at_us: int, tokens: int | None, pool: str = "pool") -> Sent:
    body = json.dumps(request).encode()
    parts = dialects.read("openai_chat", body).parts
    links = chain("team", model, parts, conversation("team", model, body, parts).id)
    return Sent(
        domain="team", chain=links, model=model, body=body, pool=pool, provider="openai", at_us=at_us,
        tokens=len(body) // 4 if tokens is None else tokens, ttl_s=_TTL_S,
    )  # fmt: skip


def ask(history: History, case: Case) -> tuple[Miss | None, float, float]:
    """What is found, and the CPU in microseconds of noting the first call and of explaining the second."""
    first = _sent(case.first, "m", 1_000_000_000, case.call.get("tokens"))
    began = time.process_time()
    history.note(first)
    noted = time.process_time()
    how = {"model": "m", "at_us": 1_000_000_000 + _TURN_US, "tokens": None, **case.call}
    second = _sent(case.second, **how)
    asked = time.process_time()
    found = explain(history, second, read=0)
    return found, (noted - began) * 1e6, (time.process_time() - asked) * 1e6


def place_right(case: Case, found: Miss) -> bool:
    if found.path != case.path:
        return case.text is None and found.path.startswith(case.path + "/")
    if case.text is None:
        return True
    old, new = case.text
    most = min(len(old), len(new))
    first = next((n for n in range(most) if old[n] != new[n]), most)
    end = next((n for n in range(most - first) if old[-1 - n] != new[-1 - n]), most - first)
    changed = len(new) - end - first
    starts = first - _BEFORE <= found.start <= first
    return starts and found.end >= min(first + 1, len(new)) and found.end - found.start <= max(changed, 0) + _LONGER


def _cases(session: Json, rng: random.Random) -> list[Case]:
    """Each mutation on one turn of the session that has some history."""
    found = []
    for kind, mutate in MUTATIONS.items():
        turns = session["turns"]
        n = rng.randrange(min(2, len(turns) - 2), len(turns) - 1)
        requests = [
            {"model": "m", "tools": copy.deepcopy(session["tools"]), "messages": copy.deepcopy(session["messages"][:turns[k]])}
            for k in (n, n + 1)
        ]
        case = Case(requests[0], requests[1], kind=kind)
        mutate(case, rng)
        found.append(case)
    return found


def run(sessions: list[Json], seed: int) -> Json:
    """Every session is in the history of all later cases, as in life."""
    rng, history = random.Random(seed), History()
    rows: dict[str, dict[str, float]] = defaultdict(lambda: {"cases": 0, "kind": 0, "place": 0})
    wrong, note_us, explain_us = [], [], []
    for session in sessions:
        for case in _cases(session, rng):
            found, noted, explained = ask(history, case)
            note_us.append(noted)
            explain_us.append(explained)
            row = rows[case.kind]
            kind = found is not None and found.kind == case.kind.replace("tool_edit", "edit")
            place = found is not None and place_right(case, found)
            row["cases"] += 1
            row["kind"] += kind
            row["place"] += place
            if not (kind and place):
                told = None if found is None else f"{found.kind} {found.path} {found.start}:{found.end}"
                wrong.append(f"{session['id']}: {case.kind} {case.path}: {told}")
    total = sum(row["cases"] for row in rows.values())
    return {
        "cases": total, "kinds": len(rows),
        "kind_right": sum(row["kind"] for row in rows.values()) / total,
        "place_right": sum(row["place"] for row in rows.values()) / total,
        "note_us": sum(note_us) / total, "explain_us": sum(explain_us) / total, "history_bytes": history.bytes,
        "by_kind": rows, "wrong": wrong,
    }  # fmt: skip


@click.command(help=__doc__)
@click.option("--sessions", type=click.Path(exists=True, path_type=Path), default=SESSIONS, show_default=False)
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def main(sessions: Path, seed: int, as_json: bool) -> None:
    found = run([json.loads(line) for line in sessions.read_text().splitlines()], seed)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    table = Table("kind", "cases", "kind right", "place right")
    for kind, row in found["by_kind"].items():
        table.add_row(kind, *[f"{row[name]:.0f}" for name in ("cases", "kind", "place")])
    Console().print(table)
    for line in found["wrong"]:
        click.echo(f"wrong: {line}")
    right = f"kind right {found['kind_right']:.1%}, place right {found['place_right']:.1%}"
    click.echo(f"{found['cases']} cases of {found['kinds']} kinds: {right}")
    cpu = f"noting a call {found['note_us']:.0f} us, explaining a miss {found['explain_us']:.0f} us"
    click.echo(f"CPU: {cpu}; {found['history_bytes']:,} bytes kept")


if __name__ == "__main__":
    main()
