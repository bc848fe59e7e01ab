"""A team's policy as frozen values, ready to decide by: what files.py makes of a YAML file.

`Rule.when` is a function, so two policies are compared by `version`, never by their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, get_args

from router_policies.globs import Glob, first_match
from router_policies.problems import printable

if TYPE_CHECKING:
    from router_policies.types import Ask

Level = Literal["off", "lossless", "equivalent", "relocating"]
Window = Literal["total", "day", "week", "month"]
Scope = str
"""`team`, `project`, `key`, `user`, `model`, `run`, or `tag:NAME`."""
SCOPES = ("team", "project", "key", "user", "model", "run")
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)
Exhausted = Literal["reject", "downgrade", "alert"]
Unpriced = Literal["refuse", "ceiling", "allow"]


_MEMO = 1_000


class RuleFailed(Exception):
    """A condition that could not be worked out for this ask, for example a key that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What queued calls of a class wait for, as long as their deadline lets them (queueing.py)."""

    lanes: tuple[Glob, ...] = (Glob("batch"), Glob("flex"))
    hours: str = ""  # "22-6": from 22:00 to 6:00; empty: any
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Klass:
    """How sensitive to waiting a call is. `Klass`, because `class` is taken."""

    name: str
    value_usd_per_hour: float = 0.0
    first_token_deadline_ms: float | None = None
    total_deadline_ms: float | None = None
    epsilon: float = 0.05
    lanes: tuple[Glob, ...] = ()  # those allowed, in order of preference on an equal sum; empty: any
    wait: Wait = Wait()
    hedge: bool = False  # whether a second lane may be asked while the first is silent (hedge.py)
    missed_deadline_usd: float = 0.0  # what a missed deadline costs beside the wait, where hedges are weighed
    description: str = ""
    _places: dict[str, int | None] = field(init=False, repr=False, compare=False, default_factory=dict)  # memo: lanes are few

    def place(self, lane_name: str) -> int | None:
        """Where this lane stands in the order of preference; None: not allowed."""
        try:
            return self._places[lane_name]
        except KeyError:
            found = next((i for i, glob in enumerate(self.lanes) if glob.matches(lane_name)), None)
            self._places[lane_name] = found if self.lanes else 0
            return self._places[lane_name]

    @property
    def value_usd_per_s(self) -> float:
        return self.value_usd_per_hour / 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    name: str
    klass: Klass  # with the rule's own lanes and value already in it
    when: Callable[[Ask], bool]  # may raise RuleFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRules:
    allow: tuple[Glob, ...] = (Glob("*"),)
    deny: tuple[Glob, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _refusals: dict[str, str | None] = field(init=False, repr=False, compare=False, default_factory=dict)  # memo

    def refusal(self, model: str) -> str | None:
        """Why this model, its alias resolved, is not for the team; None if it is. Deny beats allow."""
        try:
            return self._refusals[model]
        except KeyError:
            if len(self._refusals) >= _MEMO:
                self._refusals.clear()  # names come from clients
            return self._refusals.setdefault(model, self._refusal(model))

    def _refusal(self, model: str) -> str | None:
        denied = first_match(self.deny, model)
        if denied is not None:
            return f"model {printable(model)} is denied by `{denied}`"
        return None if first_match(self.allow, model) else f"model {printable(model)} is not among the allowed models"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMay:
    """What the client's own headers may decide."""

    choose_class: bool | frozenset[str] = True
    set_deadline: bool = True
    bypass_normalize: bool = False
    set_tags: bool = True

    def choose(self, class_name: str) -> bool:
        return self.choose_class if isinstance(self.choose_class, bool) else class_name in self.choose_class


@dataclass(frozen=True, slots=True, kw_only=True)
class Downgrade:
    """Where calls go once a budget is spent: these lanes, this model, or both."""

    lanes: tuple[Glob, ...] = ()
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    name: str
    limit_usd: Decimal
    window: Window = "month"
    timezone: str = "UTC"
    on_exhausted: Exhausted = "reject"
    scope: Scope = "team"
    status: int = 402
    downgrade: Downgrade | None = None

    @property
    def limit_nano_usd(self) -> int:
        return int(self.limit_usd * 1_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalize:
    level: Level = "lossless"
    hold_out: float = 0.02
    passes: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """When traffic is known to begin: a time of day by the clocks of a zone, on those days of the week (Monday is 0)."""

    hour: int
    minute: int
    days: frozenset[int] = frozenset(range(7))
    timezone: str = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What may be done with the providers' prompt caches."""

    plan: bool = True
    hold_out: float = 0.02
    fan_out_wait_ms: float = 10_000.0
    keep_warm_usd_per_day: float = 0.0
    pre_warm_usd_per_day: float = 0.0
    pre_warm_at: tuple[Start, ...] = ()
    store_usd_per_day: float = 0.0
    ask_diagnosis: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How much at most in a minute, or at once, for a team or each project, key, user, model, run or tag of it."""

    name: str = ""
    scope: Scope = "team"
    models: tuple[Glob, ...] = ()  # those it is about; empty: all
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    usd_per_minute: Decimal | None = None
    same_prompt_per_minute: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_output_tokens: int | None = None
    max_body_bytes: int | None = None
    max_choices: int | None = None
    rates: tuple[Rate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """How much a canary decides, and what rolls it back."""

    share: float = 0.1
    max_cost_rise: float = 0.1
    max_miss_rise: float = 0.02
    min_calls: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTest:
    """One entry of a file's `tests:`; `expect` has only what the author wrote."""

    name: str
    ask: Ask
    expect: Mapping[str, Any]
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One team's policy. `version` is the hash of its content; it stands on every ledger entry."""

    team: str
    version: str
    classes: Mapping[str, Klass]
    default_class: str = "standard"
    projects: Mapping[str, str] = field(default_factory=dict)  # project -> its default class
    mode: Literal["live", "shadow", "canary"] = "live"
    canary: Canary = field(default_factory=Canary)
    closed: bool = False  # every backend and model is named in the file
    description: str = ""
    file: str = ""
    models: ModelRules = field(default_factory=ModelRules)
    client_may: ClientMay = field(default_factory=ClientMay)
    rules: tuple[Rule, ...] = ()
    budgets: tuple[Budget, ...] = ()
    normalize: Normalize = field(default_factory=Normalize)
    cache: Cache = field(default_factory=Cache)
    unpriced: Unpriced = "allow"
    ceiling_usd_per_mtok: float | None = None
    limits: Limits = field(default_factory=Limits)
    hang_up: Literal["cancel", "drain"] = "cancel"
    backends: tuple[Glob, ...] = ()  # those allowed; empty: all
    explore: float = 0.05  # greatest share of calls that go to a lane whose figures are stale
    tests: tuple[PolicyTest, ...] = ()
    offers: dict[tuple[int, str], Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Memo of `policy.decide`: (id of the class, model) -> what they make of each lane."""
    kinds: dict[tuple[Any, ...], Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Another: what an ask says beside its prompt -> what follows from that."""
