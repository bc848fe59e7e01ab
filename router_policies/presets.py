"""Named policies and priors as data: built-in classes, the policy of a team without a file, figures nobody measured yet."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from router_policies.globs import globs
from router_policies.live import Forecast
from router_policies.rules import Klass, Policy
from router_policies.types import Lane, Rates, Served

OUTPUT_PRIOR = Forecast(256.0)  # for an ask nothing is known about
DEFAULT_CLASS = "standard"

KNOWN_LANES = ("fast", "priority", "standard", "flex", "batch")

CLASSES: Mapping[str, Klass] = MappingProxyType({
    klass.name: klass
    for klass in (
        Klass(
            name="interactive", value_usd_per_hour=60.0, lanes=globs(["fast", "priority", "standard"]),
            description="a person waits and watches",
        ),
        Klass(
            name="agent", value_usd_per_hour=5.0, lanes=globs(["standard", "fast", "priority"]),
            description="a program works for somebody who will look later",
        ),
        Klass(
            name="standard", value_usd_per_hour=0.1, lanes=globs(["standard", "fast", "priority"]),
            description="nothing is known: not urgent, but not for ever either",
        ),
        Klass(
            name="batch", value_usd_per_hour=0.0, lanes=globs(["batch", "flex", "standard"]),
            description="nobody waits; only the price counts",
        ),
    )
})  # fmt: skip

# What the API's own service_tier says about the class that the client has in mind; other values say nothing.
TIER_CLASSES: Mapping[str, str] = MappingProxyType(
    {"priority": "interactive", "fast": "interactive", "flex": "batch", "batch": "batch"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Figures of a lane before the first answer came back from it."""

    prefill_s_per_token: float
    seconds_per_output_token: float
    spread: float = 0.5


LANE_PRIORS: Mapping[str, Prior] = MappingProxyType({
    "fast": Prior(prefill_s_per_token=0.0001, seconds_per_output_token=0.006),
    "priority": Prior(prefill_s_per_token=0.00015, seconds_per_output_token=0.012),
    "standard": Prior(prefill_s_per_token=0.0003, seconds_per_output_token=0.02),
    "flex": Prior(prefill_s_per_token=0.001, seconds_per_output_token=0.04, spread=1.2),
    "batch": Prior(prefill_s_per_token=0.01, seconds_per_output_token=1.0, spread=2.0),
})  # fmt: skip
EMBEDDED_BACKEND, EMBEDDED_MODEL = "embedded", "smollm2-135m-instruct"
"""What `tollway up` brings."""
EMBEDDED_PRIORS: Mapping[str, Prior] = MappingProxyType({  # the small model on two CPU cores
    "fast": Prior(prefill_s_per_token=0.0012, seconds_per_output_token=0.018),
    "standard": Prior(prefill_s_per_token=0.0015, seconds_per_output_token=0.040),
})  # fmt: skip
# Only for examples and tests; what calls cost is in the price book. Fast is four times as dear as standard.
EMBEDDED_RATES: Mapping[str, Rates] = MappingProxyType({
    "fast": Rates(uncached=400_000, cached=40_000, cache_write=400_000, output=1_600_000),
    "standard": Rates(uncached=100_000, cached=10_000, cache_write=100_000, output=400_000),
})  # fmt: skip


def prior(backend_kind: str, lane_name: str) -> Prior:
    """The figures to start a lane with; `backend_kind` is "embedded" or anything else."""
    own = EMBEDDED_PRIORS.get(lane_name) if backend_kind == EMBEDDED_BACKEND else None
    return own or LANE_PRIORS.get(lane_name) or LANE_PRIORS["standard"]


def example_lanes(*models: str) -> tuple[Lane, ...]:
    """The two embedded lanes as they look at the first start, serving these models: for policy tests and docs."""
    return tuple(
        Lane(
            key=f"embedded/{name}", backend="embedded", name=name,
            models={model: Served(model, 8_192, EMBEDDED_RATES[name]) for model in models},
            prefill_s_per_token=figures.prefill_s_per_token,
            seconds_per_output_token=figures.seconds_per_output_token, spread=figures.spread,
        )
        for name, figures in EMBEDDED_PRIORS.items()
    )  # fmt: skip


def default_policy(team: str = "default") -> Policy:
    """For a team without a file: every model, class standard, no budget."""
    content = repr(sorted((k.name, k.value_usd_per_hour, tuple(map(str, k.lanes)), k.epsilon) for k in CLASSES.values()))
    version = "sha256:" + hashlib.sha256(f"preset default {content}".encode()).hexdigest()
    return Policy(
        team=team, version=version, classes=CLASSES, default_class=DEFAULT_CLASS,
        description="preset: the team has no policy file", file="(preset)",
    )  # fmt: skip
