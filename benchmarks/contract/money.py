"""C1 to C7, C15 to C20, C22, C23 and C27, as far as the test suite has their scenarios, which are run here longer.

Each prints its figures as `C3 {...}`; where one prints none, what is told is how many passed.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.contract import Reached, Scale, experiment, five

_ROOT = Path(__file__).parents[2]
_HOURS_S = 6 * 3_600
_REPLICAS = "tests/budgets/test_replicas.py"
_THREE = "test_three_replicas_with_two_hundred_calls_each_overspend_nothing"
_KILLED = "test_what_was_killed_leaves_nothing_reserved"
_WIRES = "tests/flow/test_wires.py"
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
    """SIGKILL under load, a start, and every answer that a client had whole looked for; then three replicas, Redis and
    PostgreSQL, each killed in turn."""
    count = scale.of(20, 200)
    one = scenarios(
        "C1", "", "tests/flow/test_process.py::test_kill_loses_no_answered_call", TOLLWAY_KILLS=count,
    )  # fmt: skip
    figure, kept = five.kills(10 if scale.long else 1, 2.0)
    done = f"{count:.0f} kills of one process, 12 clients, streams; {10 if scale.long else 1} of each of the five, 6 clients"
    return Reached(f"{one.figure}; {figure}", one.kept and kept, done)


@experiment("C2")
def power(scale: Scale) -> Reached:
    """A disk that keeps of what was not synced any part or none, cut at every second sync."""
    calls = scale.of(120, 1_000)
    return scenarios(
        "C2", f"{calls:.0f} calls x 3 seeds on a simulated disk; no states from strace", "tests/ledger/test_power.py",
        TOLLWAY_POWER_CALLS=calls,
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
    """SIGKILL, SIGSTOP, FLUSHALL, restart; a wire that loses, cuts, is silent."""
    seconds = scale.of(0, 120)
    found = scenarios(
        "C5", f"4 ways, away for {max(seconds / 2, 1):.0f} s each; 3 bad wires; no promoted replica", f"{_REPLICAS}::{_AWAY}",
        f"{_WIRES}::test_redis_is_behind_a_bad_wire", TOLLWAY_CHAOS_S=seconds,
    )  # fmt: skip
    waits = [[float(ms) for ms in each.split(", ")] for each in re.findall(r"'hold_ms_p50_p99_max': \[([^]]+)\]", found.figure)]
    longest, usual = max((each[2] for each in waits), default=0.0), max((each[0] for each in waits), default=0.0)
    late = f"waits of a hold: longest {longest:.0f} ms, P50 {usual:.1f} ms (promised 250 once, then 5)"
    return replace(found, figure=f"{late}; {found.figure}", kept=found.kept and bool(waits) and longest <= 250 and usual <= 5)


@experiment("C6")
def database_away(scale: Scale) -> Reached:
    """SIGKILL and SIGSTOP of PostgreSQL under load, starts without it; a wire that loses, cuts, is silent; a full disk."""
    return scenarios(
        "C6", "killed, frozen, 3 bad wires, its disk full (needs root), for some seconds under load",
        "tests/flow/test_replicas.py", _WIRES, "-k", "database",
    )  # fmt: skip


@experiment("C7")
def faults(scale: Scale) -> Reached:
    """Every row of section 5 in three dialects, streamed and not."""
    return scenarios("C7", "every cell, from a scripted server", "tests/flow/test_fault_table.py", "tests/flow/test_faults.py")


@experiment("C15")
def malformed(scale: Scale) -> Reached:
    """Odd requests at every path, mutations of good bodies, what endpoints' own schemas say, and what parsers are given."""
    bodies = scale.of(400, 20_000)
    return scenarios(
        "C15", f"{bodies:.0f} mutated bodies, every odd request, every endpoint by its schema; no atheris",
        "tests/flow/test_odd.py", "tests/flow/test_spec.py", "tests/dialects/test_sse.py", "tests/dialects/test_splice.py",
        "tests/router_policies/test_strict_yaml.py",
        TOLLWAY_ODD=bodies,
    )  # fmt: skip


@experiment("C18")
def disk_full(scale: Scale) -> Reached:
    """A journal on a file system of 128 MiB, filled and freed."""
    return scenarios("C18", "once; needs root", "tests/flow/test_disk.py", "-k", "full_disk")


@experiment("C19")
def sync_errors(scale: Scale) -> Reached:
    """EIO from every fdatasync, by strace."""
    return scenarios("C19", "once; needs strace", "tests/flow/test_disk.py", "-k", "does_not_sync")


@experiment("C20")
def reloads(scale: Scale) -> Reached:
    """Slips, cuts and half-written files in policies, in a running gateway too."""
    return scenarios(
        "C20", "1,000 slips in policy files, 60 cuts; live ones by the gateway's own reload; prices are read at the start only",
        "tests/router_policies/test_mutations.py", "tests/flow/test_policy.py", "tests/metering/test_rows.py",
    )  # fmt: skip


@experiment("C22")
def secrets(scale: Scale) -> Reached:
    """Canaries through all paths and faults, looked for in everything that is kept or told."""
    return scenarios("C22", "files, log, Redis, metrics, reports, environments", "tests/flow/test_canaries.py", "-k", "secret")


@experiment("C23")
def revocation(scale: Scale) -> Reached:
    """A key is revoked at one replica while another serves it."""
    return scenarios("C23", "2 replicas; keys do not depend on Redis", "tests/flow/test_replicas.py", "-k", "revocation")


@experiment("C16")
def arithmetic(scale: Scale) -> Reached:
    """Both kinds of budgets by a state machine, the ledger's sums against entries, holds of growing streams."""
    return scenarios(
        "C16", "hypothesis, the same length in both scales", "tests/budgets/test_machine.py", "tests/contracts",
        "tests/test_stretch.py",
    )  # fmt: skip


@experiment("C17")
def clocks(scale: Scale) -> Reached:
    """Windows in their zones over every change of clocks, holds on a clock that does not jump, replicas that keep one time."""
    return scenarios(
        "C17", "hypothesis over 12 zones; two replicas, one with two workers, with clocks ten minutes apart; a step of an hour",
        "tests/budgets/test_windows.py", "tests/budgets/test_memory.py", "tests/contracts/test_budgets.py",
        "tests/flow/test_clocks.py",
    )  # fmt: skip


@experiment("C27")
def simulation(scale: Scale) -> Reached:
    """The gateway behind its HTTP parser on a virtual clock, with seeded faults, kills and power cuts."""
    seeds = scale.of(200, 10_000)
    return scenarios(
        "C27", f"{seeds:.0f} seeds; neither sockets, Redis nor several workers are simulated", "tests/simulation",
        TOLLWAY_SEEDS=seeds,
    )  # fmt: skip
