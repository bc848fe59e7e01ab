"""What the command line asks of policies: check a folder, run the tests that stand in files, explain a decision. All pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from router_policies.files import load_folder
from router_policies.policy import decide, resolve_model
from router_policies.presets import example_lanes
from router_policies.problems import BadFile, Problem
from router_policies.rules import Policy, PolicyTest
from router_policies.types import Ask, Decision, Lane


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test of a policy file: `wrong` lists what came out otherwise, in words; empty is a pass."""

    __test__ = False  # not for pytest

    team: str
    file: str
    line: int
    name: str
    wrong: tuple[str, ...]
    reason: str  # of the decision

    @property
    def passed(self) -> bool:
        return not self.wrong


class Row(NamedTuple):
    """One lane of an explained decision; figures are None for a lane that was refused."""

    place: int | None  # 1 is chosen
    lane: str
    model: str
    cost_usd: float | None
    wait_s: float | None
    score_usd: float | None
    miss_chance: float | None
    says: str


def check_folder(folder: Path) -> list[Problem]:
    """All problems of all files; an empty list means that a gateway would take the folder."""
    try:
        load_folder(folder)
    except BadFile as bad:
        return list(bad.problems)
    return []


def run_tests(policy: Policy, lanes: Sequence[Lane] | None = None) -> list[TestResult]:
    """Run a policy's own tests, on the given lanes or on two idle example lanes that serve every model asked for."""
    return [_run_test(policy, test, lanes) for test in policy.tests]


def run_folder_tests(folder: Path, lanes: Sequence[Lane] | None = None) -> list[TestResult]:
    """Tests of every file in the folder, those on trial included. Raises BadFile if one of them is not valid."""
    found = load_folder(folder)
    return [result for policy in (*found.policies.values(), *found.candidates.values()) for result in run_tests(policy, lanes)]


def _run_test(policy: Policy, test: PolicyTest, lanes: Sequence[Lane] | None) -> TestResult:
    model = resolve_model(policy, test.ask.model).model
    if lanes is None:  # the example lanes stand for whatever backends the team has
        decision = decide(replace(policy, backends=()), test.ask, example_lanes(model))
    else:
        decision = decide(policy, test.ask, lanes)
    came_out: dict[str, Any] = {
        "class": decision.class_name,
        "lane": decision.ranked[0].lane.name if decision.ranked else None,
        "model": decision.model,
        "allowed": decision.denied is None,
    }
    wrong = tuple(
        f"{what}: expected {_word(wanted)}, is {_word(came_out[what])}"
        for what, wanted in test.expect.items()
        if came_out[what] != wanted
    )
    return TestResult(policy.team, policy.file, test.line, test.name, wrong, decision.reason)


def _word(value: Any) -> str:
    return {None: "none", True: "true", False: "false"}.get(value, str(value))


def explain(policy: Policy, ask: Ask, lanes: Sequence[Lane]) -> tuple[Decision, list[Row]]:
    """The decision, and a row for every lane: first the ranking, then those that were refused."""
    decision = decide(policy, ask, lanes)
    return decision, list(rows(decision))


def rows(decision: Decision) -> Iterable[Row]:
    for i, one in enumerate(decision.ranked):
        behind = one.score_usd - decision.ranked[0].score_usd
        says = one.note or ("chosen" if i == 0 else f"{behind:+.3g} USD against the first")
        if one.rent_usd:
            says = f"{says}; {one.rent_usd:.3g} USD of the sum is rent of a crowded slot"
        yield Row(
            i + 1, one.lane.key, one.model, one.expected_cost_usd, one.expected_wait_s, one.score_usd, one.miss_chance, says
        )
    for no in decision.refused:
        yield Row(None, no.lane.key, decision.model, None, None, None, None, no.reason)
