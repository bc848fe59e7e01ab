"""The values a decision is made of: Ask and Lanes in, Decision out; and the Filter and Scorer signatures.

A Lane says nothing about one call: what its cache holds for this call stands in `Ask.cached`, so that one snapshot of all
lanes serves every call until the next probe. Money here is float dollars: it ranks lanes and is never booked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from router_policies.live import LENGTHS, Forecast, Rent
from router_policies.rules import Klass, Policy


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one call before it is sent. Header names are lower case."""

    team: str
    model: str  # as the client wrote it; aliases are resolved by `decide`
    project: str = ""  # what the key belongs to, if to anything
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str] = {}
    stream: bool = False
    tags: Mapping[str, str] = {}
    client: str = ""  # who calls: the user agent, or what the key says
    has_tools: bool = False
    prompt_bytes: int = 0
    prompt_tokens: int = 0  # estimate
    max_output_tokens: int | None = None
    output_forecast_tokens: float | None = None  # None: what `forecast` says of the route, else the prior in presets.py
    wished_class: str | None = None  # x-tollway-class
    wished_tier: str | None = None  # the API's own service_tier
    deadline_ms: float | None = None  # for the whole answer, from now
    hour: int = 12  # 0..23, in the zone the gateway keeps
    cached: Mapping[str, int] = {}  # lane key -> prompt tokens its cache is thought to hold
    written: Mapping[str, int] = {}  # lane key -> prompt tokens it would charge for storing
    session: str = ""  # what all turns of a conversation share; keeps its ties at one lane
    draw: float = 1.0  # in [0, 1), from a seeded even sequence: below the policy's `explore`, a stale lane may be tried
    in_run: bool = False  # whether it belongs to an agent's run
    gap_s: float | None = None  # since the answer that this call goes on from, where it looks like a next turn
    siblings: int = 0  # other calls of the same run under way: a step beside them is seldom the one that is waited for


class Rates(NamedTuple):
    """Micro-dollars per million tokens of each class; None is not priced, which is not the same as free."""

    uncached: int | None = None
    cached: int | None = None
    cache_write: int | None = None
    output: int | None = None


class Served(msgspec.Struct, frozen=True, gc=False):
    """A model as one lane serves it."""

    upstream: str  # the name the backend knows it by
    window: int | None = None  # tokens of prompt and answer together; None is not known
    rates: Rates = Rates()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A backend with a service tier or pool, as last seen. Speeds nobody measured yet are priors (presets.py)."""

    key: str  # "backend/lane"
    backend: str
    name: str
    models: Mapping[str, Served]
    healthy: bool = True
    why_not: str = ""  # in words, when not healthy
    in_flight: int = 0
    max_in_flight: int | None = None
    queue_s: float = 0.0  # to the first token of an empty prompt
    prefill_s_per_token: float = 0.0002
    first_token_factors: tuple[float, ...] = (1.0,) * LENGTHS  # seen over expected, by class of prompt length (live.py)
    seconds_per_output_token: float = 0.02
    spread: float = 0.5  # sigma of the log of the first token's wait: 0.5 is "half or twice as long is not rare"
    pace_spread: float | None = None  # the same of the time per token; None: as `spread`
    backlog_s: float = 0.0  # wait behind calls that are there already, as far as it is known apart
    rent: Rent | None = None  # of a second of its slots; None: nobody waits for them
    slots: int | None = None  # calls at once that a pool of one's own serves side by side
    samples: int = 0  # how well the figures are known
    unseen: int = 0  # answers of other lanes since this one's last


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A lane that may not serve, and why; `by` is the filter's name."""

    lane: Lane
    reason: str
    by: str = ""


class Offer(msgspec.Struct, frozen=True, gc=False):
    """A lane as one policy, class and model see it: stands until prices or the policy change. Money is dollars a token."""

    models: Mapping[str, Served]  # the lane's, when this was worked out
    refused: Refused | None
    place: int = 0  # in the class's order of preference
    uncached_usd: float = 0.0
    cached_usd: float = 0.0
    written_usd: float = 0.0
    output_usd: float = 0.0


class Terms(msgspec.Struct, frozen=True, gc=False):
    """On what terms a lane is weighed for one ask; worked out once, read by every filter and scorer."""

    policy: Policy
    klass: Klass
    model: str  # resolved
    value_usd_per_s: float
    output_tokens: float  # expected
    output_spread: float  # sigma of its logarithm
    first_token_deadline_s: float | None
    total_deadline_s: float | None


class Ranked(msgspec.Struct, frozen=True, gc=False):
    """A lane that may serve, and its figures."""

    lane: Lane
    model: str  # the model to ask it for: the resolved one, or a fallback
    expected_cost_usd: float
    expected_wait_s: float
    score_usd: float  # cost + value of a second x wait + rent
    miss_chance: float  # chance to miss a deadline; 0 where there is none
    note: str = ""  # why it stands behind cheaper ones
    first_token_s: float = 0.0  # expected
    rent_usd: float = 0.0  # for the slot, where others wait for it

    @property
    def upstream_model(self) -> str:
        return self.lane.models[self.model].upstream


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Every lane, ranked or refused; a lane that can serve a fallback model too is ranked once for each model.

    `ranked` is the order of failover; empty means that nobody can serve.
    """

    klass: Klass
    model: str  # resolved
    ranked: tuple[Ranked, ...]
    refused: tuple[Refused, ...]
    reason: str
    policy_version: str
    denied: str | None = None  # why the policy does not let the team use this model; then nothing is ranked
    deadline_ms: float | None = None  # for the whole answer, after the policy's word
    rule_errors: tuple[str, ...] = ()  # rules whose condition failed while it ran: count them

    @property
    def class_name(self) -> str:
        return self.klass.name


Filter = Callable[[Ask, Lane, Terms], str | None]
"""Why this lane cannot take the ask, or None if it can."""

ForecastOf = Callable[[str, str, str], Forecast]
"""(team, model, class) -> how long an answer will be."""
