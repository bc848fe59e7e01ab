"""Trace files -> recorded calls, in order of time: Azure's CSV, Mooncake's JSON lines, and our own JSON lines.

None of the public traces says who waits, so a mix of classes is dealt out by conversation, the same in every run.
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec

from router_policies.simulate import Recorded

_BLOCK_TOKENS = 512  # of Mooncake's hashes
_SHARES = 10_000


class BadTrace(Exception):
    """The file cannot be replayed; the text says which line and why."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of classes, by name, which add up to 1."""

    shares: Mapping[str, float]

    def of(self, session: str) -> str | None:
        draw = crc32(session.encode()) % _SHARES / _SHARES
        for name, share in self.shares.items():
            draw -= share
            if draw < 0:
                return name
        return None


NO_MIX = Mix({})


def read(path: Path, *, team: str = "default", model: str = "m", mix: Mix = NO_MIX) -> Iterator[Recorded]:
    """Calls of one file; its form is told by its content. Raises BadTrace."""
    try:
        yield from _calls(path, team, model, mix)
    except UnicodeDecodeError:
        raise BadTrace(f"{path}:1: is not UTF-8 text") from None


def _calls(path: Path, team: str, model: str, mix: Mix) -> Iterator[Recorded]:
    with path.open(encoding="utf-8", newline="") as lines:
        first = lines.readline()
        lines.seek(0)
        if first.lstrip().startswith("{"):
            kind = _mooncake if "hash_ids" in first else _ours
            yield from kind(path, lines, team, model, mix)
        elif "ContextTokens" in first:
            yield from _azure(path, lines, team, model, mix)
        else:
            raise BadTrace(f"{path}:1: is neither JSON lines nor a CSV with TIMESTAMP, ContextTokens and GeneratedTokens")


def merged(traces: Sequence[Iterator[Recorded]]) -> Iterator[Recorded]:
    return traces[0] if len(traces) == 1 else heapq.merge(*traces, key=lambda call: call.at_s)


def _azure(path: Path, lines: Any, team: str, model: str, mix: Mix) -> Iterator[Recorded]:
    start: float | None = None
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            at_s = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (KeyError, ValueError, TypeError) as error:
            raise BadTrace(f"{path}:{number}: {type(error).__name__}: {error}") from None
        start = at_s if start is None else start
        session = f"{path.name} {number}"
        yield Recorded(
            at_s - start, max(prompt, 1), max(output, 1), team, model, session=session, wished_class=mix.of(session)
        )


def _mooncake(path: Path, lines: Any, team: str, model: str, mix: Mix) -> Iterator[Recorded]:
    for number, row in _objects(path, lines):
        try:
            blocks = tuple(row["hash_ids"])
            session = f"{path.name} {blocks[1] if len(blocks) > 1 else number}"
            yield Recorded(
                row["timestamp"] / 1e3, max(row["input_length"], 1), max(row["output_length"], 1), team, model, blocks,
                _BLOCK_TOKENS, session, mix.of(session),
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise BadTrace(f"{path}:{number}: {type(error).__name__}: {error}") from None


def _ours(path: Path, lines: Any, team: str, model: str, mix: Mix) -> Iterator[Recorded]:
    """Objects with the fields of `Recorded`; `at_s`, `prompt_tokens` and `output_tokens` must be there."""
    known = set(Recorded._fields)
    for number, row in _objects(path, lines):
        odd = sorted(set(row) - known)
        if odd:
            raise BadTrace(f"{path}:{number}: unknown field {odd[0]!r}; known are {', '.join(sorted(known))}")
        for name in ("at_s", "prompt_tokens", "output_tokens"):
            if type(row.get(name)) not in (int, float) or row[name] < 0:
                raise BadTrace(f"{path}:{number}: {name} must be there, a number from 0 up")
        try:
            call = Recorded(**{"team": team, "model": model, **row, "blocks": tuple(row.get("blocks", ()))})
        except TypeError as error:
            raise BadTrace(f"{path}:{number}: {error}") from None
        yield call if call.wished_class or not mix.shares else call._replace(wished_class=mix.of(call.session or str(number)))


def _objects(path: Path, lines: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise BadTrace(f"{path}:{number}: is not a JSON object")
        yield number, row
