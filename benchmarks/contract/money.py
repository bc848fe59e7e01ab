"""C1, C3, C4, C5, C16, C17: kills, budgets, the store, clocks. The scenarios are those of the test suite, run here longer.

Each prints its figures as `C3 {...}`; where one prints none, what is told is how many passed.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.contract import Reached, Scale, experiment

_ROOT = Path(__file__).parents[2]
_HOURS_S = 6 * 3_600
_REPLICAS = "tests/budgets/test_replicas.py"
_THREE = "test_three_replicas_with_two_hundred_calls_each_overspend_nothing"
_KILLED = "test_what_was_killed_leaves_nothing_reserved"
_AWAY = "test_a_store_that_goes_away_costs_calls_nothing"


def scenarios(line: str, done: str, *tests: str, **env: float) -> Reached:
    """Runs tests and takes their figures."""
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "--timeout=0", *tests]
    variables = {**os.environ, **{name: f"{value:g}" for name, value in env.items()}}
    ran = subprocess.run(
        command, cwd=_ROOT, env=variables, capture_output=True, text=True, timeout=_HOURS_S, check=False
    )
    told = re.findall(rf"^\.*{line} (.+)$", ran.stdout, re.MULTILINE)
    counts = re.findall(r"^(?=.*(?:passed|failed|error)).+ in [\d.]+s.*$", ran.stdout, re.MULTILINE)
    return Reached("; ".join([*told, *counts[-1:]]) or ran.stderr[-300:], ran.returncode == 0, done)


@experiment("C1")
def kills(scale: Scale) -> Reached:
    """SIGKILL under load, a start, and every answer that a client had whole looked for."""
    count = scale.of(20, 200)
    return scenarios(
        "C1", f"{count:.0f} kills, 12 clients, streams", "tests/flow/test_process.py::test_kill_loses_no_answered_call",
        TOLLWAY_KILLS=count,
    )  # fmt: skip


@experiment("C3")
def concurrency(scale: Scale) -> Reached:
    """Three replicas at one budget; then streams whose holds grow until the money ends."""
    seconds = scale.of(0, 60)
    return scenarios(
        "C3", f"3 replicas x 200 tasks, {seconds or 9:.0f} s, one killed; 6 cut streams", f"{_REPLICAS}::{_THREE}",
        "tests/flow/test_cut.py", "tests/test_stretch.py", TOLLWAY_CHAOS_S=seconds,
    )  # fmt: skip


@experiment("C4")
def phantom(scale: Scale) -> Reached:
    """Replicas killed one after the other, calls abandoned, until all holds have run out."""
    seconds = scale.of(0, 60)
    return scenarios("C4", "3 replicas killed under load, 5 % abandoned", f"{_REPLICAS}::{_KILLED}", TOLLWAY_CHAOS_S=seconds)


@experiment("C5")
def store_away(scale: Scale) -> Reached:
    """SIGKILL, SIGSTOP, FLUSHALL, restart."""
    seconds = scale.of(0, 120)
    return scenarios(
        "C5", f"4 ways, away for {max(seconds / 2, 1):.0f} s each; no promoted replica", f"{_REPLICAS}::{_AWAY}",
        TOLLWAY_CHAOS_S=seconds,
    )  # fmt: skip


@experiment("C16")
def arithmetic(scale: Scale) -> Reached:
    """Both kinds of budgets by a state machine, the ledger's sums against entries, holds of growing streams."""
    return scenarios(
        "C16", "hypothesis, the same length in both scales", "tests/budgets/test_machine.py", "tests/contracts",
        "tests/test_stretch.py",
    )  # fmt: skip


@experiment("C17")
def clocks(scale: Scale) -> Reached:
    """Windows in their zones over every change of clocks, holds on a clock that does not jump."""
    return scenarios(
        "C17", "hypothesis over 12 zones; no whole replicas with clocks apart", "tests/budgets/test_windows.py",
        "tests/budgets/test_memory.py", "tests/contracts/test_budgets.py",
    )  # fmt: skip
