"""What `/metrics` shows: counts and times in Prometheus' text form, one registry per process.

Attempts are tallied in plain numbers and become metrics when somebody asks: the library's own counters cost ten locked
steps a call.
"""
from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.budgets import BudgetState
from gateway.core.entry import Entry
from gateway.core.usage import TokenUsage
from gateway.dialects.blocks import KNOWN

_FIRST_TOKEN_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60)
_TOTAL_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_CLASSES = ("uncached", "cache_read", "cache_write", "output")
_LABELS = ("team", "backend", "lane", "latency_class")


class Metrics:
    """Team names are labels only as they stand in policy files and keys; nothing a client sends becomes a label."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._attempts = Attempts()
        registry.register(self._attempts)
        self._refused = Counter("tollway_refused_calls", "Calls refused before any attempt", ["code"], registry=registry)
        self._rule_errors = Counter(
            "tollway_rule_errors", "Policy rules whose condition failed while it ran", ["team", "rule"], registry=registry
        )
        self._over_hold = Counter(
            "tollway_over_hold_attempts", "Attempts that cost more than was held", ["team"], registry=registry
        )
        self._budget = Gauge(
            "tollway_budget_usd", "Budgets in use, in dollars", ["team", "budget", "figure"], registry=registry
        )
        self.budget_mode = Gauge("tollway_budget_mode", "1 for the mode that budgets are in", ["mode"], registry=registry)
        self.budget_pending = Gauge(
            "tollway_budget_settlements_pending", "Settlements that the budget store has not confirmed", registry=registry
        )
        self.in_flight: Callable[[], int] = lambda: 0
        """Calls being served."""
        Gauge("tollway_calls_in_flight", "Calls being served", registry=registry).set_function(lambda: self.in_flight())
        self.unexplained: Callable[[], int] = lambda: 0
        """Prompts that were not looked at for why their prefix was missed: too long, or others were in the way."""
        self.ledger_lag = Gauge("tollway_ledger_lag_entries", "Entries in the journal and not yet in SQL", registry=registry)
        self.reload_failures = Gauge("tollway_policy_problems", "Problems of the last policy reload", registry=registry)
        self.price_problems = Gauge("tollway_price_problems", "1: changed price files are not in force", registry=registry)
        self.settings_changed = Gauge("tollway_settings_changed", "1: the settings file was edited; restart", registry=registry)
        registry.register(_KeptElsewhere(self))
        self._child = lru_cache(maxsize=4096)(self._make_child)
        self.attempt = self._attempts.add

    def _make_child(self, metric: Any, *labels: str) -> Any:
        return metric.labels(*labels)

    def refused(self, code: str) -> None:
        self._child(self._refused, code).inc()

    def over_hold(self, team: str) -> None:
        self._child(self._over_hold, team).inc()

    def budgets(self, mode: str, pending: int, states: Sequence[BudgetState]) -> None:
        """Budgets of teams as they stand; those of projects, keys and so on would be too many series."""
        for name in ("normal", "lease", "closed"):
            self.budget_mode.labels(name).set(name == mode)
        self.budget_pending.set(pending)
        for state in states:
            if state.account == f"{state.team}/{state.name}":
                for figure in ("limit", "spent", "held"):
                    child = self._child(self._budget, state.team, state.name, figure)
                    child.set(getattr(state, f"{figure}_nanos") / 1e9)

    def rule_failed(self, team: str, rule: str) -> None:
        self._child(self._rule_errors, team, rule).inc()

    def render(self) -> bytes:
        return generate_latest(self.registry)


class Attempts:
    """Counts of attempts, as a collector of the library's kind."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str, str, str], _Tally] = {}
        self._times: dict[tuple[str, str], _Times] = {}
        """By backend and lane; each tally has its own."""

    def add(self, entry: Entry, first_s: float | None, total_s: float) -> None:
        """Counts one attempt; times are seconds."""
        key = (entry.team, entry.backend, entry.lane, entry.latency_class)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally(self._times.setdefault(key[1:3], _Times()))
        tally.add(entry, entry.tokens)
        times = tally.times
        if first_s is not None:
            times.first.add(first_s)
        if total_s:
            times.total.add(total_s)
        times.predicted += entry.predicted_read_tokens or 0

    def collect(self) -> Iterator[Metric]:
        attempts = CounterMetricFamily("tollway_attempts", "Attempts by outcome", labels=(*_LABELS, "status"))
        tokens = CounterMetricFamily("tollway_tokens", "Tokens by class", labels=(*_LABELS, "token_class"))
        cost = CounterMetricFamily("tollway_cost_usd", "Cost in dollars, as far as prices are known", labels=_LABELS)
        unpriced = CounterMetricFamily("tollway_unpriced_attempts", "Attempts whose price is not known", labels=_LABELS)
        for labels, tally in list(self._tallies.items()):
            for status, count in list(tally.by_status.items()):
                attempts.add_metric((*labels, status), count)
            for name, count in zip(_CLASSES, tally.tokens, strict=True):
                tokens.add_metric((*labels, name), count)
            cost.add_metric(labels, tally.cost_nanos / 1e9)
            unpriced.add_metric(labels, tally.unpriced)
        yield from (attempts, tokens, cost, unpriced)
        yield from self._collect_times()

    def _collect_times(self) -> Iterator[Metric]:
        lane = ("backend", "lane")
        first = HistogramMetricFamily("tollway_first_token_seconds", "Time to the first token", labels=lane)
        total = HistogramMetricFamily("tollway_answer_seconds", "Time to the whole answer", labels=lane)
        predicted = CounterMetricFamily(
            "tollway_predicted_cache_read_tokens", "Cached tokens that the prefix index foresaw", labels=lane
        )
        for labels, times in list(self._times.items()):
            first.add_metric(labels, times.first.buckets(), times.first.sum)
            total.add_metric(labels, times.total.buckets(), times.total.sum)
            predicted.add_metric(labels, times.predicted)
        yield from (first, total, predicted)


class _KeptElsewhere:
    """Counts that are kept elsewhere."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        text = "Prompts that were not looked at for cache misses: too long, or too many came"
        yield CounterMetricFamily("tollway_unexplained_prompts", text, value=self._metrics.unexplained())
        text = "Parts of prompts that would be known if they were sent again"
        yield GaugeMetricFamily("tollway_known_parts", text, value=len(KNOWN))


class _Tally:
    __slots__ = ("by_status", "cost_nanos", "times", "tokens", "unpriced")

    def __init__(self, times: _Times) -> None:
        self.times = times
        self.by_status: dict[str, int] = {}
        self.tokens = [0, 0, 0, 0]
        self.cost_nanos = 0
        self.unpriced = 0

    def add(self, entry: Entry, usage: TokenUsage) -> None:
        tokens, status = self.tokens, entry.status
        self.by_status[status] = self.by_status.get(status, 0) + 1
        tokens[0] += usage.uncached or 0
        if usage.cache_read:
            tokens[1] += usage.cache_read
        if usage.cache_write:
            tokens[2] += usage.written
        tokens[3] += usage.output or 0
        if entry.cost_nanos is None:
            self.unpriced += 1
        else:
            self.cost_nanos += entry.cost_nanos


class _Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as the text form wants them."""
        found, below = [], 0
        for bound, count in zip((*map(float, self.bounds), float("inf")), self.counts, strict=True):
            below += count
            found.append(("+Inf" if bound == float("inf") else repr(bound), float(below)))
        return found


class _Times:
    __slots__ = ("first", "predicted", "total")

    def __init__(self) -> None:
        self.first = _Histogram(_FIRST_TOKEN_S)
        self.total = _Histogram(_TOTAL_S)
        self.predicted = 0
