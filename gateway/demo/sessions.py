"""Recorded agent sessions, one JSON object a line: `{id, source, tools, messages, turns}`.

Request k of a session sends `messages[:turns[k]]` and the same tools, so each request begins with all of the one before it.
"""
from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

SHIPPED = Path(__file__).parent.parent / "data" / "demo_sessions.jsonl"


class Session(BaseModel):
    """One agent's work, as it was recorded."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(min_length=1, max_length=64)
    tools: list[dict[str, Any]] = Field(default_factory=list)
    messages: list[dict[str, Any]] = Field(min_length=1)
    turns: list[int] = Field(min_length=1)

    @model_validator(mode="after")
    def _turns_grow(self) -> Session:
        grown = [0, *self.turns, len(self.messages) + 1]
        if any(a >= b for a, b in pairwise(grown)):
            raise ValueError(f"turns must grow, from 1 to at most the number of messages ({len(self.messages)})")
        return self

    def body(self, turn: int) -> dict[str, Any]:
        """What the request of a turn (counted from 0) sends besides the model and its options."""
        return {"messages": self.messages[: self.turns[turn]], **({"tools": self.tools} if self.tools else {})}


def load(path: Path, limit: int | None = None) -> list[Session]:
    """The first `limit` sessions. Raises `click.ClickException` that names file, line and what is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: cannot be read: {error}") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    sessions = [_session(path, number, line) for number, line in numbered[:limit]]
    if not sessions:
        raise click.ClickException(f"{path}: holds no sessions; each line is {{id, tools, messages, turns}}")
    return sessions


def _session(path: Path, number: int, line: str) -> Session:
    try:
        return Session.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise click.ClickException(f"{path}:{number}: {place + ': ' if place else ''}{first['msg']}") from None
