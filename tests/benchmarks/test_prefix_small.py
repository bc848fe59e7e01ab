"""Files of few and short sessions are made the same each time, go through, and show what first writes cost."""
from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.prefix_small import files, main
from gateway.demo.sessions import Session

TOOLS = [{"type": "function", "function": {"name": f"f{n}", "description": "d" * 2_000, "parameters": {"type": "object"}}} for n in range(9)]


def session(number: int) -> Session:
    rng, messages = Random(number), list[dict[str, Any]]([{"role": "system", "content": "Keep to the manual. " * 250}])
    for _ in range(3 + number):
        messages += [{"role": "user", "content": f"{rng.random()} " * 60}, {"role": "assistant", "content": "Done."}]
    return Session(id=f"s{number}", tools=TOOLS, messages=messages, turns=list(range(2, len(messages), 2)))


SESSIONS = [session(number) for number in range(6)]


def test_the_files_hold_sessions_and_are_the_same_each_time() -> None:
    made = files(SESSIONS)
    assert made == files(SESSIONS)
    for one in [one for some in made.values() for one in some]:
        Session.model_validate(one.model_dump())
    assert {len(one.turns) for one in made["2 calls each"]} == {2}
    assert not any(one.tools for one in made["no tools"])
    assert len({one.messages[0]["content"] for one in made["apps"]}) == len(SESSIONS)


def test_a_first_write_that_nobody_reads_is_seen(tmp_path: Path) -> None:
    """One call of an agent pays for it, six have it back."""
    path = tmp_path / "s.jsonl"
    path.write_text("".join(one.model_dump_json() + "\n" for one in SESSIONS))
    chosen = [word for name in ("1 sessions of 1", "1 calls each") for word in ("--file", name)]
    found = CliRunner().invoke(main, ["--sessions", str(path), "--provider", "anthropic", *chosen, "--json"])
    assert found.exit_code == 0, found.output
    rows = {(row["file"], row["family"]): row for row in json.loads(found.stdout)}
    assert 1.1 < rows["1 sessions of 1", "plain"]["planned"] < 1.25
    assert rows["1 sessions of 1", "plain"]["saving"] is None
    assert rows["1 calls each", "plain"]["planned"] < 0.5
    assert rows["1 calls each", "plain"]["saving"] == pytest.approx(0.95, abs=0.1)


def test_a_file_that_is_not_made_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(SESSIONS[0].model_dump_json())
    found = CliRunner().invoke(main, ["--sessions", str(path), "--file", "x"])
    assert found.exit_code == 2
    assert "there is no file 'x'" in found.output
