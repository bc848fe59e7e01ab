"""Who waits: a small logistic model over what a call shows, trained from the ledger, told as a chance that a person watches.

What gives it away: people take seconds to read and type before the next turn, programs milliseconds; people stream; agents
have runs; jobs come at night. The label is what can only be known later (the gap to the next turn of the same conversation), or
the class that the client itself chose. A `Seen` has only what both the gateway and the ledger know. Stdlib only: a dozen
weights need no library, and the gateway reads them in microseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from router_policies.rules import Policy
from router_policies.types import Ask

FEATURES = (
    "streams", "browser", "sdk", "harness", "hour_sin", "hour_cos", "prompt_log", "in_run", "at_once", "later", "team",
)  # fmt: skip
PERSON_S, PROGRAM_S = (4.0, 900.0), 1.5  # gaps before a next turn: a person reads and types, a program goes on at once
_BROWSERS = ("mozilla", "chat", "editor", "vscode", "cursor", "librechat", "open-webui")
_HARNESSES = ("claude-cli", "codex", "agent", "swe", "aider")
_SDKS = ("openai", "anthropic", "python", "node", "langchain", "httpx", "curl", "go-http")
_STEPS, _RATE, _RIDGE = 400, 0.5, 1e-3
_TEAM_WEIGHT = 8.0  # answers after which a team's own share counts as much as all teams'


class Seen(NamedTuple):
    """One call and, where it is known, whether somebody waited for it (1) or not (0)."""

    team: str
    at_s: float
    stream: bool
    client: str
    prompt_tokens: int
    in_run: bool = False
    gap_s: float | None = None  # since the answer it goes on from (turns.py)
    waited: int | None = None


class Measured(NamedTuple):
    """On days that the model has not seen. Precision and recall of `somebody waits` at a chance of one half."""

    calls: int
    waited_share: float
    precision: float
    recall: float
    log_loss: float
    base_log_loss: float  # of the share alone

    @property
    def useful(self) -> bool:
        return self.log_loss < self.base_log_loss and self.precision >= 0.8


@dataclass(frozen=True, slots=True)
class Model:
    """Weights of the features, their bias, and the share of calls with somebody waiting, by team."""

    weights: tuple[float, ...]
    bias: float
    teams: Mapping[str, float]
    known: int = 0  # calls it was trained on
    measured: Measured | None = None

    def chance(self, seen: Seen) -> float:
        total = self.bias
        for weight, value in zip(self.weights, features(seen, self.teams), strict=True):
            total += weight * value
        return 1.0 / (1.0 + math.exp(-max(min(total, 30.0), -30.0)))

    def learnt(
        self, waits: str = "interactive", works: str = "batch", sure: float = 0.85
    ) -> Callable[[Policy, Ask], str | None]:
        """For `sensitivity.classify`: names a class only where it is sure; rules and the client's word come before it."""

        def guess(policy: Policy, ask: Ask) -> str | None:
            at_s = ask.hour * 3_600.0
            chance = self.chance(Seen(ask.team, at_s, ask.stream, ask.client, ask.prompt_tokens, ask.in_run, ask.gap_s))
            return waits if chance >= sure else works if chance <= 1.0 - sure else None

        return guess

    def save(self, path: Path) -> None:
        content = {
            "features": FEATURES, "weights": self.weights, "bias": self.bias, "teams": dict(self.teams), "known": self.known,
            "measured": self.measured._asdict() if self.measured else None,
        }  # fmt: skip
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


class BadModel(Exception):
    """The file holds no model that this version can use; the text says why."""


def load(path: Path) -> Model:
    """Raises BadModel."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        measured = Measured(**content["measured"]) if content["measured"] else None
        weights = tuple(map(float, content["weights"]))
        model = Model(weights, float(content["bias"]), dict(content["teams"]), content["known"], measured)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadModel(
            f"{path}: is no sensitivity model ({type(error).__name__}); train one with `tollway sensitivity train`"
        ) from None
    if tuple(content["features"]) != FEATURES or len(model.weights) != len(FEATURES):
        raise BadModel(f"{path}: was trained for other features; train it anew with `tollway sensitivity train`")
    return model


def features(seen: Seen, teams: Mapping[str, float]) -> tuple[float, ...]:
    """What the weights are for, of a call on its way and of one in the ledger alike. The hour is whole, as decisions see it."""
    client, turn, gap_s = seen.client.lower(), seen.at_s % 86_400 // 3_600 / 24 * math.tau, seen.gap_s
    return (
        float(seen.stream), float(any(word in client for word in _BROWSERS)), float(any(word in client for word in _SDKS)),
        float(any(word in client for word in _HARNESSES)), math.sin(turn), math.cos(turn),
        math.log1p(seen.prompt_tokens) / 10.0, float(seen.in_run), float(gap_s is not None and gap_s <= PROGRAM_S),
        float(gap_s is not None and PERSON_S[0] <= gap_s <= PERSON_S[1]), _logit(teams.get(seen.team, 0.5)),
    )  # fmt: skip


def train(calls: Sequence[Seen], held_out_days: int = 2) -> Model:
    """Fits on all days but the last ones, which it is measured on. Raises ValueError where there is too little to learn."""
    known = [seen for seen in calls if seen.waited is not None]
    days = sorted({int(seen.at_s // 86_400) for seen in known})
    if len(days) <= held_out_days:
        raise ValueError(f"has {len(days)} days with calls that can be told apart, and {held_out_days} of them are held out")
    early = [seen for seen in known if seen.at_s // 86_400 < days[-held_out_days]] if held_out_days else known
    late = [seen for seen in known if seen.at_s // 86_400 >= days[-held_out_days]] if held_out_days else []
    shares = {seen.waited for seen in early}
    if len(early) < 50 or len(shares) < 2:
        raise ValueError(f"has {len(early)} calls to learn from; at least 50 are needed, of both kinds")
    model = _fitted(early)
    return model if not late else Model(model.weights, model.bias, model.teams, model.known, measured(model, late))


def measured(model: Model, calls: Sequence[Seen]) -> Measured:
    right = called = waited = 0
    loss = base = 0.0
    share = min(max(sum(seen.waited or 0 for seen in calls) / len(calls), 1e-6), 1 - 1e-6)
    for seen in calls:
        chance, truth = min(max(model.chance(seen), 1e-6), 1 - 1e-6), seen.waited
        called += chance >= 0.5
        waited += truth == 1
        right += chance >= 0.5 and truth == 1
        loss -= math.log(chance if truth else 1 - chance)
        base -= math.log(share if truth else 1 - share)
    return Measured(
        len(calls), waited / len(calls), right / called if called else math.nan, right / waited if waited else math.nan,
        loss / len(calls), base / len(calls),
    )  # fmt: skip


def _fitted(calls: Sequence[Seen]) -> Model:
    """Gradient descent on the logarithmic loss with a ridge. Equal rows are counted, not repeated."""
    overall = sum(seen.waited or 0 for seen in calls) / len(calls)
    teams = _team_shares(calls, overall)
    rows: dict[tuple[float, ...], list[float]] = {}
    for seen in calls:
        row = features(seen, teams)
        row = tuple(round(value, 1) for value in row)
        count = rows.setdefault(row, [0.0, 0.0])
        count[0] += 1.0
        count[1] += float(seen.waited or 0)
    weights, bias = [0.0] * len(FEATURES), _logit(overall)
    scale = _RATE / len(calls)
    for _ in range(_STEPS):
        slopes, slope = [0.0] * len(FEATURES), 0.0
        for row, (times, waited) in rows.items():
            total = bias + sum(weight * value for weight, value in zip(weights, row, strict=True))
            wrong = times / (1.0 + math.exp(-max(min(total, 30.0), -30.0))) - waited
            slope += wrong
            for i, value in enumerate(row):
                slopes[i] += wrong * value
        weights = [weight - scale * slopes[i] - _RATE * _RIDGE * weight for i, weight in enumerate(weights)]
        bias -= scale * slope
    return Model(tuple(weights), bias, teams, len(calls))


def _team_shares(calls: Iterable[Seen], overall: float) -> dict[str, float]:
    counts: dict[str, list[float]] = {}
    for seen in calls:
        count = counts.setdefault(seen.team, [_TEAM_WEIGHT * overall, _TEAM_WEIGHT])
        count[0] += float(seen.waited or 0)
        count[1] += 1.0
    return {team: waited / total for team, (waited, total) in counts.items()}


def _logit(share: float) -> float:
    share = min(max(share, 0.02), 0.98)
    return math.log(share / (1 - share))
