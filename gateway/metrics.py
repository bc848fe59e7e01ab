"""What `/metrics` shows: counts and times in Prometheus' text form, one registry per process."""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.budgets import BudgetState
from gateway.core.usage import TokenUsage

_FIRST_TOKEN_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60)
_TOTAL_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Team names are labels only as they stand in policy files and keys; nothing a client sends becomes a label."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        lane = ["team", "backend", "lane", "latency_class"]
        self._attempts = Counter("tollway_attempts", "Attempts by outcome", [*lane, "status"], registry=registry)
        self._tokens = Counter("tollway_tokens", "Tokens by class", [*lane, "token_class"], registry=registry)
        self._cost = Counter("tollway_cost_usd", "Cost in dollars, as far as prices are known", lane, registry=registry)
        self._unpriced = Counter("tollway_unpriced_attempts", "Attempts whose price is not known", lane, registry=registry)
        self._refused = Counter("tollway_refused_calls", "Calls refused before any attempt", ["code"], registry=registry)
        self._rule_errors = Counter(
            "tollway_rule_errors", "Policy rules whose condition failed while it ran", ["team", "rule"], registry=registry
        )
        self._first = Histogram(
            "tollway_first_token_seconds", "Time to the first token", ["backend", "lane"], buckets=_FIRST_TOKEN_S,
            registry=registry,
        )  # fmt: skip
        self._total = Histogram(
            "tollway_answer_seconds", "Time to the whole answer", ["backend", "lane"], buckets=_TOTAL_S, registry=registry
        )
        self._predicted = Counter(
            "tollway_predicted_cache_read_tokens", "Cached tokens that the prefix index foresaw", ["backend"], registry=registry
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
        self.in_flight = Gauge("tollway_calls_in_flight", "Calls being served", registry=registry)
        self.ledger_lag = Gauge("tollway_ledger_lag_entries", "Entries in the journal and not yet in SQL", registry=registry)
        self.reload_failures = Gauge("tollway_policy_problems", "Problems of the last policy reload", registry=registry)
        self._child = lru_cache(maxsize=4096)(self._make_child)

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

    def attempt(
        self, team: str, backend: str, lane: str, latency_class: str, status: str, tokens: TokenUsage, cost_nanos: int | None,
        first_s: float | None, total_s: float, predicted: int | None,
    ) -> None:  # fmt: skip
        """Counts one attempt."""
        labels, child = (team, backend, lane, latency_class), self._child
        child(self._attempts, *labels, status).inc()
        for name, count in (
            ("uncached", tokens.uncached), ("cache_read", tokens.cache_read), ("cache_write", tokens.written),
            ("output", tokens.output),
        ):  # fmt: skip
            if count:
                child(self._tokens, *labels, name).inc(count)
        if cost_nanos is None:
            child(self._unpriced, *labels).inc()
        elif cost_nanos > 0:
            child(self._cost, *labels).inc(cost_nanos / 1e9)
        if first_s is not None:
            child(self._first, backend, lane).observe(first_s)
        if total_s:
            child(self._total, backend, lane).observe(total_s)
        if predicted:
            child(self._predicted, backend).inc(predicted)

    def render(self) -> bytes:
        return generate_latest(self.registry)
