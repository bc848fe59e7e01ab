"""Runs `tollway` with its wall clock set off by what a file says: for budgets that follow the calendar.

    python -m tests.cases.clocked FILE serve --config ...

The product reads the wall clock by `time.time` and `time.time_ns` only, and durations by the monotonic clock, which is left alone.
"""
from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

from gateway import cli


def set_off(file: Path) -> None:
    """From now on in this process."""
    real = time.time_ns

    def now_ns() -> int:
        return real() + int(file.read_text())

    time.time_ns = now_ns  # type: ignore[assignment]
    time.time = lambda: now_ns() / 1e9  # type: ignore[assignment]


def write(file: Path, iso: str) -> None:
    """Makes it `iso` now; the clock goes on from there."""
    offset = int(datetime.fromisoformat(iso).timestamp() * 1e9) - time.time_ns()
    fresh = file.with_suffix(".new")
    fresh.write_text(str(offset))
    fresh.rename(file)


if __name__ == "__main__":
    set_off(Path(sys.argv[1]))
    cli.main(sys.argv[2:])
