"""The prefix benchmark on other files: any well-formed session goes through, a bad line is named, and no family of sessions
costs more than untouched."""
from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.prefix import FAMILIES, main, prices_of, through, untouched
from benchmarks.prefix_traffic import traffic
from benchmarks.prefix_world import world
from benchmarks.providers.rules import PROVIDERS
from gateway.demo.sessions import Session

RULES = "Keep to the manual. " * 250
TOOL = {"type": "function", "function": {"name": "f", "description": "d" * 3000, "parameters": {"type": "object", "properties": {}}}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(*ids: str) -> list[dict[str, Any]]:
    return [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]


ODD: dict[str, dict[str, Any]] = {
    "no tools": {"messages": [said("system", RULES), said("user", "a"), said("assistant", "b"), said("user", "c")], "turns": [2, 4]},
    "no system": {"tools": [TOOL], "messages": [said("user", "a"), said("assistant", "b"), said("user", "c")], "turns": [1, 3]},
    "pictures": {"messages": [said("system", RULES), said("user", [PICTURE]), said("assistant", "b"), said("user", [PICTURE])], "turns": [2, 4]},
    "one call": {"messages": [said("user", "a")], "turns": [1]},
    "tools at once": {"tools": [TOOL], "turns": [2, 6], "messages": [
        said("system", RULES), said("user", "a"), said("assistant", None, tool_calls=called("x", "y")),
        *[said("tool", "r", tool_call_id=id) for id in "xy"], said("user", "b")]},
    "empty": {"messages": [said("system", ""), said("user", "a"), said("assistant", ""), said("user", ""), said("user", [])], "turns": [2, 5]},
    "blocks": {"messages": [said("system", [{"type": "text", "text": RULES}, {"type": "text", "text": "Now."}]), said("user", [])], "turns": [2]},
    "unknown": {"messages": [said("developer", RULES), said("user", [{"type": "hologram"}])], "turns": [2]},
    "unicode": {"messages": [said("system", "é\u2028\u0000" * 900), said("user", "\U0001f600")], "turns": [2]},
    "two systems": {"messages": [said("system", RULES), said("system", "Now."), said("user", "a"), said("system", "b")], "turns": [3, 4]},
}  # fmt: skip


def written(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_odd_sessions_go_through(tmp_path: Path) -> None:
    """What a backend cannot be told is left out of its figures, and said."""
    file = written(tmp_path / "odd.jsonl", *[json.dumps({"id": name, **session}) for name, session in ODD.items()])
    chosen = [word for name in ("anthropic", "engine") for word in ("--provider", name)]
    families = [word for name in ("clock line", "fan-out", "own marks") for word in ("--family", name)]
    found = CliRunner().invoke(main, ["--sessions", file, "--only", "sessions", "--json", *chosen, *families])
    assert found.exit_code == 0, found.output
    left = {row["provider"]: set(row["left"]) for row in json.loads(found.stdout)["sessions"]}
    assert left == {"anthropic": {"unknown"}, "engine": set()}
    assert "without session unknown: messages[" in found.stderr


@pytest.mark.parametrize(("lines", "why"), [
    (['{"id": "a", "messages": [{"role": "user"}], "turns": [1]}', "{"], "bad.jsonl:2: Invalid JSON"),
    (['{"id": "a", "messages": [{"role": "user"}], "turns": [2]}'], "bad.jsonl:1: Value error, turns must grow"),
    (['{"messages": [{}], "turns": [1]}'], "bad.jsonl:1: id: Field required"),
    ([], "holds no sessions"),
])  # fmt: skip
def test_a_bad_file_is_told_by_line(tmp_path: Path, lines: list[str], why: str) -> None:
    found = CliRunner().invoke(main, ["--sessions", written(tmp_path / "bad.jsonl", *lines)])
    assert found.exit_code == 1
    assert why in found.output


@pytest.mark.parametrize(("name", "line", "why"), [
    ("mooncake_x.jsonl", '{"timestamp": 1}', "mooncake_x.jsonl:1: 'input_length' is missing"),
    ("azure_x.csv", "TIMESTAMP,ContextTokens\nyesterday,5", "azure_x.csv:2: Invalid isoformat"),
])  # fmt: skip
def test_a_bad_trace_is_told_by_line(tmp_path: Path, name: str, line: str, why: str) -> None:
    written(tmp_path / name, line)
    sessions = written(tmp_path / "s.jsonl", json.dumps({"id": "a", **ODD["one call"]}))
    found = CliRunner().invoke(main, ["--sessions", sessions, "--only", "traces"])
    assert found.exit_code == 1
    assert why in found.output


def documents(rng: Random, n: int) -> Session:
    """Long documents that come with each question, results of tools called at once, no system prompt."""
    messages: list[dict[str, Any]] = []
    turns = []
    for k in range(rng.randrange(2, 6)):
        ids = [f"{n}{k}{i}" for i in range(rng.randrange(1, 4))]
        messages += [said("user", f"{rng.random()} " * rng.randrange(50, 400)), said("assistant", None, tool_calls=called(*ids))]
        messages += [said("tool", f"{rng.random()} " * 100, tool_call_id=id) for id in ids] + [said("user", "Go on.")]
        turns.append(len(messages))
    return Session(id=f"d{n}", tools=[TOOL], messages=messages, turns=turns)


def short_talks(rng: Random, n: int) -> Session:
    """Below every minimum at first; few go on."""
    many = rng.choice((1, 1, 1, 2, 9))
    messages = [said(("user", "assistant")[k % 2], "word " * rng.randrange(5, 90)) for k in range(2 * many - 1)]
    return Session(id=f"t{n}", messages=messages, turns=[2 * k + 1 for k in range(many)])


def forks(rng: Random, n: int) -> Session:
    """One of three long histories, left at some point for a question of its own."""
    line = Random(rng.randrange(3))
    history = [said(("user", "assistant")[k % 2], f"{line.random()} " * 60) for k in range(2 * rng.randrange(1, 8))]
    return Session(id=f"f{n}", tools=[TOOL], messages=[said("system", RULES), *history, said("user", f"Fork {n}")], turns=[len(history) + 2])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("make", [documents, short_talks, forks])
def test_no_family_of_sessions_costs_more_than_untouched(make: Any, provider: str) -> None:
    """Plain, and with pauses."""
    rng = Random(make.__name__)
    sessions, at = [make(rng, n) for n in range(16)], PROVIDERS[provider]
    prices, base_s, dearer = prices_of(at), 0.0, {}
    with world({"normalize": {"level": "lossless", "hold_out": 0}}) as running:
        for family in FAMILIES:
            if family.name not in ("plain", "uneven gaps"):
                continue
            timed, left = traffic(family, sessions), dict[int, str]()
            running.providers.forget()
            ratio = through(running, at, timed, prices, family, base_s, left) / untouched(at, timed, prices, family)
            base_s += timed[-1].at_s + 50_000.0
            assert left == {}
            if ratio > 1.01:
                dearer[family.name] = ratio
    assert dearer == {}
