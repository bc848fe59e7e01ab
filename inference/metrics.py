"""Counters and histograms of the engine, as Prometheus text with vLLM's names after `tollway_engine:`.

Token counters are exact: once nothing runs, `prompt_tokens_total`, `prompt_tokens_cached_total` and
`generation_tokens_total` equal the sums of the usage handed out, per service tier. A request that ends without an
answer (abort, error) counts too: the prompt tokens that were found or computed until then, and every token it
generated, whether or not it still reached the client.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

PREFIX = "tollway_engine:"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

# name -> help; every counter there is, so that a name is never misspelt in silence
COUNTERS = {
    "prompt_tokens_total": "Prompt tokens found in the cache or computed.",
    "prompt_tokens_cached_total": "Prompt tokens that came from the prefix cache.",
    "generation_tokens_total": "Generated tokens.",
    "prefix_cache_queries_total": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits_total": "Prompt tokens found in the prefix cache.",
    "request_success_total": "Requests that ended, by reason.",
    "admission_rejections_total": "Requests refused at the door, by reason.",
    "num_preemptions_total": "Requests put back to make room.",
    "kv_spill_stored_tokens_total": "Tokens of evicted blocks that were spilled.",
    "kv_spill_hit_tokens_total": "Tokens found in the spill and read back; those of prompts are prefix_cache_hits too.",
    "spec_decode_num_drafts_total": "Steps with drafts.",
    "spec_decode_num_draft_tokens_total": "Drafted tokens.",
    "spec_decode_num_accepted_tokens_total": "Drafted tokens that were right.",
    "engine_steps_total": "Forward passes.",
    "computed_rows_total": "Rows computed, by kind.",
    "step_seconds_total": "Seconds spent in forward passes.",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": "Arrival to first token.",
    "inter_token_latency_seconds": "Time between steps that gave a request tokens, per token.",
    "request_queue_time_seconds": "Arrival to admission.",
    "e2e_request_latency_seconds": "Arrival to end.",
}
_PER_TIER = ("prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total")
_FROM_ZERO = ("kv_spill_stored_tokens_total", "kv_spill_hit_tokens_total", "num_preemptions_total")
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Histogram:
    buckets: list[int] = field(default_factory=lambda: [0] * (len(_SECONDS) + 1))
    total: float = 0.0

    def observe(self, value: float, times: int) -> None:
        self.buckets[bisect_left(_SECONDS, value)] += times
        self.total += value * times

    def add_to(self, family: Metric, labels: dict[str, str]) -> None:
        counts = [*accumulate(self.buckets)]
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), counts, strict=True):
            family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{family.name}_sum", labels, self.total)
        family.add_sample(f"{family.name}_count", labels, counts[-1])


class Metrics:
    """Written by the engine's thread, read by the server's."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, float]] = {name: defaultdict(float) for name in COUNTERS}
        self._histograms: dict[str, dict[Labels, _Histogram]] = {name: defaultdict(_Histogram) for name in HISTOGRAMS}

    def start_at_zero(self, tiers: Iterable[str]) -> None:
        """Make the token counters exist, those of every tier too, so that a first scrape has something to subtract from."""
        for name in _FROM_ZERO:
            self.add(name, 0)
        for tier in tiers:
            for name in _PER_TIER:
                self.add(name, 0, service_tier=tier)

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count something."""
        self._counters[name][tuple(labels.items())] += amount

    def observe(self, name: str, value: float, times: int = 1, **labels: str) -> None:
        """Note a duration in seconds."""
        self._histograms[name][tuple(labels.items())].observe(value, times)

    def value(self, name: str, **labels: str) -> float:
        """A counter summed over every label that is not given."""
        wanted = labels.items()
        return sum(value for key, value in list(self._counters[name].items()) if wanted <= dict(key).items())

    def render(self, gauges: Mapping[str, tuple[str, Iterable[tuple[dict[str, str], float]]]], model: str) -> bytes:
        """Prometheus text; `gauges` maps name to help and labelled values."""
        shown = CollectorRegistry()
        shown.register(_Families([*self._families(gauges, {"model_name": model})]))
        return generate_latest(shown)

    def _families(
        self, gauges: Mapping[str, tuple[str, Iterable[tuple[dict[str, str], float]]]], model: Mapping[str, str]
    ) -> Iterator[Metric]:
        for name, (text, values) in gauges.items():
            family = Metric(PREFIX + name, text, "gauge")
            for labels, value in values:
                family.add_sample(PREFIX + name, {**model, **labels}, value)
            yield family
        for name, text in COUNTERS.items():
            family = Metric(PREFIX + name.removesuffix("_total"), text, "counter")
            for key, value in list(self._counters[name].items()):
                family.add_sample(PREFIX + name, {**model, **dict(key)}, value)
            yield family
        for name, text in HISTOGRAMS.items():
            family = Metric(PREFIX + name, text, "histogram")
            for key, histogram in list(self._histograms[name].items()):
                histogram.add_to(family, {**model, **dict(key)})
            yield family


class _Families(Collector):
    """What is shown, as the library takes it."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Sequence[Metric]:
        return self._families
