"""From settings and policies to what is watched: channels, bounds and budgets for alerts, and how this gateway is.

How it is goes into the database every turn of the upkeep, for the dashboard, which cannot ask the gateway itself.
"""
from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from gateway.alerts.rules import Bounds
from gateway.alerts.senders import Channel, Mail
from gateway.core.money import nanos
from gateway.ledger.budget_use import Limit
from gateway.ledger.reports import Reports
from gateway.services import Services
from gateway.settings import Settings
from gateway.status_table import StatusTable
from router_policies.files import PolicyStore
from router_policies.rules import Policy


def channels_of(settings: Settings) -> tuple[Channel, ...]:
    """Where alerts go."""
    found = []
    for name, how in settings.alerts.channels.items():
        mail = None
        if how.kind == "email":
            assert how.host is not None
            assert how.sender is not None
            password = settings.alert_secrets.get(f"{name}.password")
            mail = Mail(
                host=how.host, port=how.port, sender=how.sender, to=tuple(how.to), user=how.user, password=password, tls=how.tls
            )
        teams = None if how.teams is None else frozenset(how.teams)
        kinds = None if how.alerts is None else frozenset(how.alerts)
        url = settings.alert_secrets.get(f"{name}.url")
        found.append(Channel(name=name, shape=how.kind, url=url, mail=mail, teams=teams, kinds=kinds))
    return tuple(found)


def bounds_of(settings: Settings) -> Bounds:
    how = settings.alerts
    return Bounds(
        budget_levels=tuple(how.budget_levels), spend_times=how.spend_times,
        spend_least_nanos=nanos(f"{how.spend_least_usd:.9f}"), cache_points=how.cache_points,
        cache_least_tokens=how.cache_least_tokens, first_token_p95_ms=how.first_token_p95_ms,
    )  # fmt: skip


def limits_of(policies: PolicyStore, reports: Reports) -> list[Limit]:
    """The budgets in force, those of the default policy for each team without a file of its own."""
    current = policies.current
    found = [limit for team, policy in current.policies.items() for limit in _limits(team, policy)]
    if current.default.budgets:
        others = set(reports.values("team")) - set(current.policies)
        found += [limit for team in sorted(others) for limit in _limits(team, current.default)]
    return found


def _limits(team: str, policy: Policy) -> Sequence[Limit]:
    return [
        Limit(team=team, name=b.name, limit_nanos=b.limit_nano_usd, window=b.window, tz=b.timezone, scope=b.scope)
        for b in policy.budgets
    ]


class StatusJob:
    """A job of the upkeep."""

    def __init__(self, services: Services, table: StatusTable) -> None:
        self._services, self._table = services, table
        self._name = f"{socket.gethostname()}/{os.getpid()}"

    async def __call__(self) -> None:
        await self._table.say(self._name, await self._detail())

    async def _detail(self) -> dict[str, Any]:
        services, policies = self._services, self._services.policies
        held = {state.account: state.held_nanos for state in await services.budgets.snapshot()}
        return {
            "lanes": [
                {"lane": lane.key, "healthy": lane.healthy, "why_not": lane.why_not, "in_flight": lane.in_flight,
                 "max_in_flight": lane.max_in_flight, "queue_s": round(lane.queue_s, 4), "samples": lane.samples}
                for lane in services.fleet.snapshot()
            ],
            "journal_lag": services.ledger.lag, "database": services.ledger.failing or "ok", "draining": services.draining,
            "policies": {team: policy.version for team, policy in policies.current.policies.items()},
            "policies_loaded_s": policies.loaded_at, "policy_problems": [str(problem) for problem in policies.problems],
            "deadlines": [
                {"team": team, "class": name, "first_token_ms": klass.first_token_deadline_ms}
                for team, policy in policies.current.policies.items() for name, klass in policy.classes.items()
                if klass.first_token_deadline_ms is not None
            ],
            "budgets": [
                {"team": b.team, "name": b.name, "limit_nanos": b.limit_nanos, "window": b.window, "tz": b.tz, "scope": b.scope,
                 "held_nanos": held.get(f"{b.team}/{b.name}", 0)}
                for b in limits_of(policies, services.reports)
            ],
        }  # fmt: skip
