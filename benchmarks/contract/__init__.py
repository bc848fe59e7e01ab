"""The contract C1-C27: what is promised, and experiments that measure what is reached.

A promise's experiment is one function in a module of this package:

    @experiment("C8")
    def hang_ups(scale: Scale) -> Reached: ...

`Scale.long` asks for the full length; otherwise it takes a few seconds. A promise without an experiment is listed as not
measured.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Promise(NamedTuple):
    """One line of the contract."""

    text: str
    figure: str


PROMISES: dict[str, Promise] = {
    "C1": Promise("kill -9 loses no entry of an answer given whole", "0 lost, orphans all booked"),
    "C2": Promise("nor does a power cut, at durability=power", "0 lost over all cut points"),
    "C3": Promise("budgets hold under concurrency", "overspend 0, at most one chunk a stream; >= 99 % usable"),
    "C4": Promise("no phantom spend", "held 0; spent = ledger, to the unit"),
    "C5": Promise("Redis away 60 s", ">= 99.9 % inside leases; overspend 0; exact in 10 s"),
    "C6": Promise("PostgreSQL away 60 s", "0 failed calls; exact in 30 s"),
    "C7": Promise("every upstream fault as section 5 says", "100 % of cells"),
    "C8": Promise("a hang-up stops the upstream", "<= 250 ms P99; 0 leaked; all metered"),
    "C9": Promise("retries stay in budget and never bill twice", "<= 1.1x upstream; each try its entry"),
    "C10": Promise("deadlines", ">= 99.9 % before the client's time-out; 0 tries with < 200 ms"),
    "C11": Promise("restarts drain", "0 cut before the limit; unready <= 1 s; 0 failed in the roll"),
    "C12": Promise("slow readers", "RSS <= 512 MiB; probe P99 <= 100 ms; all freed"),
    "C13": Promise("slowloris", "good calls P99 <= 2x baseline"),
    "C14": Promise("no input stalls the loop", "<= 100 ms"),
    "C15": Promise("malformed input", "0 5xx of ours, 0 crashes, 0 hangs > 1 s"),
    "C16": Promise("ledger arithmetic", "sum of entries = sum of usage x rates"),
    "C17": Promise("clocks", "0 early or late expiries > 1 s"),
    "C18": Promise("disk full", "calls in flight settle; new 503; resumes <= 5 s; 0 lost"),
    "C19": Promise("sync errors", "no acknowledged entry lost; admission stops"),
    "C20": Promise("bad reload", "0 applied; said within 1 s"),
    "C21": Promise("tenants apart", "0 shared hits; p > 0.01; 0 canaries"),
    "C22": Promise("secrets stay in", "0 found"),
    "C23": Promise("revocation", "<= 5 s, <= 30 s with Redis away"),
    "C24": Promise("soak", "RSS slope < 1 MiB/min; fds +-10; held 0"),
    "C25": Promise("overload, 3x capacity", "goodput >= 90 %; refusals <= 50 ms; P99 <= 2x"),
    "C26": Promise("one team cannot starve others", "others' P99 <= 1.5x, success >= 99.9 %"),
    "C27": Promise("whole-system simulation", "0 broken invariants over all seeds"),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of the full experiment is done."""

    long: bool = False

    def of(self, short: float, full: float) -> float:
        return full if self.long else short


@dataclass(frozen=True, slots=True)
class Reached:
    """What an experiment measured. `kept`: whether the promise holds for what was done."""

    figure: str
    kept: bool
    done: str
    """What was done, shorter than the contract asks where it is."""


Experiment = Callable[[Scale], Reached]
EXPERIMENTS: dict[str, Experiment] = {}


def experiment(line: str) -> Callable[[Experiment], Experiment]:
    """Registers the measurement of one promise."""
    assert line in PROMISES, line

    def register(function: Experiment) -> Experiment:
        EXPERIMENTS[line] = function
        return function

    return register
