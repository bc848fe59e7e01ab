"""Policies on trial: a shadow decides beside the live file and is only recorded, a canary decides a share of the calls.

A canary is rolled back by what its calls turn out to cost and miss against the live file's in the same process. The roll-back
holds until the file changes, in all processes (a source of `sharing.py`) and after a restart; the ledger shows by policy
version who decided what.
"""
from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from router_policies.files import PolicySet
from router_policies.rules import Canary, Policy
from router_policies.types import Decision

_log = logging.getLogger("tollway")
_SURE = 1.645  # one-sided 95 %
_MOST_KEPT = 200


@dataclass(slots=True)
class Side:
    """What the calls under one policy came to."""

    calls: int = 0
    missed: int = 0
    usd: float = 0.0
    usd_squares: float = 0.0

    def add(self, usd: float, missed: bool) -> None:
        self.calls += 1
        self.missed += missed
        self.usd += usd
        self.usd_squares += usd * usd

    @property
    def mean(self) -> float:
        return self.usd / self.calls

    @property
    def variance_of_mean(self) -> float:
        return max(self.usd_squares / self.calls - self.mean**2, 0.0) / self.calls

    @property
    def miss_share(self) -> float:
        return self.missed / self.calls


class Trials:
    """One per process; empty where no file is on trial. `kept`: a file that roll-backs are remembered in."""

    def __init__(self, kept: Path | None = None) -> None:
        self._kept = kept
        self.fresh: dict[str, str] | None = None
        self._sides: dict[tuple[str, str], Side] = {}
        self._pairs: dict[str, tuple[str, str]] = {}
        self.rolled_back: dict[str, str] = _read(kept)
        """Version of a canary -> why."""

    def policy(self, policies: PolicySet, team: str, unit: str) -> Policy:
        """Who decides for this run, or this call where it has none."""
        candidate = policies.candidates.get(team)
        if candidate is None or candidate.mode != "canary" or candidate.version in self.rolled_back:
            return policies.for_team(team)
        return candidate if crc32(unit.encode()) < candidate.canary.share * 2**32 else policies.for_team(team)

    def shadow(self, policies: PolicySet, team: str) -> Policy | None:
        """The policy that is only watched."""
        candidate = policies.candidates.get(team)
        return candidate if candidate is not None and candidate.mode == "shadow" else None

    def saw(self, policies: PolicySet, team: str, version: str, cost_nanos: int | None, missed: bool) -> None:
        """A call ended. Only counted where the team has a canary."""
        candidate = policies.candidates.get(team)
        if candidate is None or candidate.mode != "canary" or candidate.version in self.rolled_back:
            return
        live = policies.for_team(team).version
        if version not in (live, candidate.version):
            return
        pair = (live, candidate.version)
        if self._pairs.get(team, pair) != pair:  # a file changed: what was counted is of another trial
            self._sides = {key: side for key, side in self._sides.items() if key[0] != team}
        self._pairs[team] = pair
        for each in pair:
            self._sides.setdefault((team, each), Side())
        self._sides[team, version].add((cost_nanos or 0) / 1e9, missed)
        why = verdict(self._sides[team, live], self._sides[team, candidate.version], candidate.canary)
        if why is not None:
            _log.warning("canary %s of team %s rolled back: %s", candidate.file, team, why)
            self._roll_back(candidate.version, why)
            if self.fresh is not None:
                self.fresh[candidate.version] = why

    def take(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Another process has rolled canaries back: version and why."""
        for version, why in pairs:
            if version not in self.rolled_back:
                _log.warning("canary %s rolled back, as another process saw: %s", version, why)
                self._roll_back(version, why)

    def standing(self, policies: PolicySet, team: str) -> dict[str, Any] | None:
        """How the team's trial goes, for its lead; None where there is none."""
        candidate = policies.candidates.get(team)
        if candidate is None:
            return None
        pair = policies.for_team(team).version, candidate.version
        counted = self._pairs.get(team) == pair
        live, canary = (self._sides[team, version] if counted else Side() for version in pair)
        return {
            "mode": candidate.mode, "file": Path(candidate.file).name, "version": candidate.version,
            "rolled_back": self.rolled_back.get(candidate.version),
            **({} if candidate.mode == "shadow" else {"share": candidate.canary.share}),
            "live": {"calls": live.calls, "missed": live.missed}, "canary": {"calls": canary.calls, "missed": canary.missed},
        }  # fmt: skip

    def _roll_back(self, version: str, why: str) -> None:
        self.rolled_back[version] = why
        if self._kept is not None:
            latest = dict(list(self.rolled_back.items())[-_MOST_KEPT:])
            try:
                self._kept.write_text(json.dumps(latest, indent=1), encoding="utf-8")
            except OSError as error:
                _log.warning("the roll-back holds until the next start only: %s: %s", self._kept, error.strerror)


def _read(kept: Path | None) -> dict[str, str]:
    """What was remembered, as far as it can be read."""
    try:
        found = json.loads(kept.read_text(encoding="utf-8")) if kept is not None and kept.is_file() else {}
    except (OSError, ValueError):
        return {}
    return {str(version): str(why) for version, why in found.items()} if isinstance(found, dict) else {}


def verdict(live: Side, canary: Side, limits: Canary) -> str | None:
    """Why the canary has to go, or None."""
    if min(live.calls, canary.calls) < max(limits.min_calls, 1):
        return None
    rise = canary.mean - live.mean
    if rise > limits.max_cost_rise * live.mean and rise > _SURE * math.sqrt(live.variance_of_mean + canary.variance_of_mean):
        return f"a call costs {canary.mean:.3g} USD against {live.mean:.3g}"
    more = canary.miss_share - live.miss_share
    error = math.sqrt(sum(side.miss_share * (1 - side.miss_share) / side.calls for side in (live, canary)))
    if more > limits.max_miss_rise and more > _SURE * error:
        return f"{canary.miss_share:.1%} of calls fail or miss a deadline against {live.miss_share:.1%}"
    return None


def missed(decision: Decision, ok: bool, first_token_ms: float | None, total_ms: float) -> bool:
    """Whether the call failed, or came later than its class allows."""
    first, total = decision.klass.first_token_deadline_ms, decision.deadline_ms
    if first is not None and first_token_ms is not None and first_token_ms > first:
        return True
    return not ok or (total is not None and total_ms > total)


def shadow_row(decision: Decision) -> Mapping[str, Any]:
    """What stands in the entry beside the lanes' figures."""
    if not decision.ranked:
        return {"lane": "", "refused": f"shadow policy {decision.policy_version} would take no lane: {decision.reason}"}
    best = decision.ranked[0]
    return {
        "lane": best.lane.key,
        "expected_cost_usd": round(best.expected_cost_usd, 9),
        "expected_wait_s": round(best.expected_wait_s, 4),
        "sum_usd": round(best.score_usd, 9),
        "miss_chance": round(best.miss_chance, 4),
        "shadow": decision.policy_version,
        "class": decision.class_name,
        "note": f"what the shadow policy would take, as class {decision.class_name}",
    }
