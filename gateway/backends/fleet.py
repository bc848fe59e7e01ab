"""Configured backends -> what a call can be sent to (`Target`) and what a decision weighs (`Lane`).

A `Target` never changes while the settings stand; a lane has one for each dialect it can serve, which is the client's own
where the backend speaks it, else one that the gateway translates to. A `Lane` is a snapshot of live figures; one snapshot
serves every call for a few milliseconds, so a decision costs no bookkeeping.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from gateway.backends.fields import Known, known, left_out
from gateway.backends.http import Address
from gateway.backends.media import is_inside
from gateway.backends.probe import LaneProbe
from gateway.backends.retries import RetryBudget
from gateway.core.secret import Secret
from gateway.dialects import DIALECTS, TRANSLATED
from gateway.dialects.splice import Spans
from gateway.settings import Settings
from gateway.settings_file import BackendSettings, LaneSettings
from router_policies.live import Figures, rent
from router_policies.types import Lane, Rates, Served

_SNAPSHOT_S = 0.02
_RATES_S = 60.0
_DIALECT_OF = {
    "chat": "openai_chat", "responses": "openai_responses", "embeddings": "openai_embeddings", "messages": "anthropic_messages",
}  # fmt: skip

RatesOf = Callable[[str, str, str | None], Rates]
"""(provider, upstream model, tier) -> rates that hold now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and how one lane is reached."""

    key: str
    backend: str
    lane: str
    provider: str
    region: str | None
    dialect: str
    address: Address
    headers: tuple[tuple[bytes, bytes], ...]
    secret: Secret | None = None
    """The key that stands in them."""
    set_fields: Mapping[str, Any] = field(default_factory=dict)
    priced_as: str | None
    connect_timeout_s: float
    first_byte_timeout_s: float
    idle_timeout_s: float
    cache_salt: bool
    max_tool_name: int | None = None
    cache_ttl: bool = True
    batch: bool = False
    offline: bool = False
    """Whether it is reached through a batch API only, and by no call on its way."""
    data_only: bool = False
    """Whether pictures and files must come as data: URLs."""
    known_fields: Known | None = None
    """The only fields of a client that travel to an engine of one's own; None: all."""
    pool: str
    """What shares one prefix cache: all lanes of a backend."""
    base: str = ""
    """The backend's address, for paths beside its dialects'."""
    apis: tuple[str, ...] = ()

    @property
    def native(self) -> bool:
        """Whether it is the provider whose dialect it speaks, who knows that client's billing header."""
        return self.dialect == "anthropic_messages" and not self.cache_salt

    def left_out(self, client: str, body: bytes, spans: Spans) -> list[str]:
        """What of a body in the client's dialect does not travel there: see `fields.left_out`."""
        return left_out(self.known_fields, client, self.dialect, body, spans)

    def at(self, path: str) -> Target:
        """The same lane, at another path under the backend's address."""
        return replace(self, address=Address.of(self.base + path))


class Fleet:
    """All lanes of all backends."""

    def __init__(self, settings: Settings, rates_of: RatesOf) -> None:
        self._rates_of = rates_of
        self._backends = settings.backends
        self.targets: dict[str, Target] = {}
        self.probes: dict[str, LaneProbe] = {}
        self._siblings: dict[str, list[LaneProbe]] = {}
        """Backend -> its lanes' probes."""
        self.retries = {name: RetryBudget() for name in settings.backends}
        self._roads: dict[tuple[str, str], Target] = {}
        self._offline: dict[tuple[str, str], Target] = {}
        for name, backend in settings.backends.items():
            for lane, how in backend.lanes.items():
                target = _target(name, backend, lane, how, settings.backend_keys.get(name))
                self.targets[target.key] = target
                self.probes[target.key] = LaneProbe(how)
                self._siblings.setdefault(name, []).append(self.probes[target.key])
                for client, road in _roads(target).items():
                    (self._offline if target.offline else self._roads)[target.key, client] = road
        self._snapshot: tuple[Lane, ...] = ()
        self._snapshot_until = 0.0
        self._by_dialect: dict[str, tuple[Lane, ...]] = {}
        self._bounded = [
            (place, probe) for place, probe in enumerate(self.probes.values()) if probe.slots or probe.max_in_flight
        ]
        """Lanes for which each call in flight counts, with their places in the snapshot."""
        self._answers = 0
        self._served: dict[str, Mapping[str, Served]] = {}
        self._served_until = 0.0

    @property
    def models(self) -> list[str]:
        """All names that clients can use, sorted."""
        return sorted({name for backend in self._backends.values() for name in backend.by_name})

    def snapshot(self) -> tuple[Lane, ...]:
        now = time.monotonic()
        if now >= self._snapshot_until:
            if now >= self._served_until:
                self._served = {key: self._serves(target) for key, target in self.targets.items()}
                self._served_until = now + _RATES_S
            self._snapshot = tuple(self._lane(target, now) for target in self.targets.values())
            self._snapshot_until = now + _SNAPSHOT_S
            self._by_dialect.clear()
        elif self._bounded and any(probe.in_flight != self._snapshot[place].in_flight for place, probe in self._bounded):
            self._recount(now)
        return self._snapshot

    def _recount(self, now: float) -> None:
        """A burst must not all go where there was room 20 ms ago."""
        lanes = list(self._snapshot)
        for place, probe in self._bounded:
            if probe.in_flight != lanes[place].in_flight:
                backlog_s = probe.backlog_s(now)
                due = rent(probe.figures.view(), backlog_s)
                lanes[place] = replace(lanes[place], in_flight=probe.in_flight, backlog_s=backlog_s, rent=due)
        self._snapshot = tuple(lanes)
        self._by_dialect.clear()

    def answered(self, key: str) -> None:
        """A lane gave an answer: the others' figures are one answer older."""
        self._answers += 1
        self.probes[key].last_answer = self._answers

    def lanes(self, dialect: str) -> tuple[Lane, ...]:
        """A snapshot of the lanes that can serve a client of this dialect."""
        snapshot = self.snapshot()
        found = self._by_dialect.get(dialect)
        if found is None:
            found = self._by_dialect[dialect] = tuple(lane for lane in snapshot if (lane.key, dialect) in self._roads)
        return found

    def road(self, lane: str, dialect: str) -> Target:
        """How a lane serves a client of this dialect."""
        return self._roads[lane, dialect]

    def offline(self, dialect: str, model: str) -> list[tuple[Lane, Target]]:
        """The lanes behind batch APIs that can serve a client of this dialect."""
        own = {lane.key: lane for lane in self.snapshot() if model in lane.models}
        return [(own[key], road) for (key, spoken), road in self._offline.items() if spoken == dialect and key in own]

    def offline_road(self, lane: str, dialect: str) -> Target | None:
        """How a lane behind a batch API serves a client of this dialect; None: it is not configured any more."""
        return self._offline.get((lane, dialect))

    def stale(self) -> None:
        """The next snapshot is taken anew: a lane was cooled, or a test wants to see it."""
        self._snapshot_until = 0.0

    def _serves(self, target: Target) -> dict[str, Served]:
        tier = target.set_fields.get("service_tier") or target.priced_as
        return {
            name: Served(
                upstream=model.upstream or name,
                window=model.context_tokens,
                rates=self._rates_of(target.provider, model.upstream or name, tier),
            )
            for name, model in self._backends[target.backend].by_name.items()
        }

    def _figures(self, target: Target) -> Figures:
        """A lane that nobody has seen is as much quicker or slower than its first guess as the best known of its backend."""
        own = self.probes[target.key].figures.view()
        if own.samples:
            return own
        known = max((probe.figures.view() for probe in self._siblings[target.backend]), key=attrgetter("samples"))
        return own._replace(first_token=known.first_token, pace=known.pace)

    def _lane(self, target: Target, now: float) -> Lane:
        probe = self.probes[target.key]
        why_not, figures, backlog_s = probe.why_not(now), self._figures(target), probe.backlog_s(now)
        return Lane(
            key=target.key,
            backend=target.backend,
            name=target.lane,
            models=self._served[target.key],
            healthy=why_not is None,
            why_not=why_not or "",
            in_flight=probe.in_flight,
            max_in_flight=probe.max_in_flight,
            queue_s=probe.prior.first_token_s,
            prefill_s_per_token=probe.prior.prefill_s_per_token,
            first_token_factors=figures.first_token,
            seconds_per_output_token=probe.prior.seconds_per_output_token * figures.pace,
            spread=figures.first_token_spread,
            pace_spread=figures.pace_spread,
            backlog_s=backlog_s,
            rent=rent(figures, backlog_s),
            slots=probe.slots,
            samples=figures.samples,
            unseen=self._answers - probe.last_answer,
        )


def _roads(target: Target) -> dict[str, Target]:
    """Client's dialect -> how the lane serves it."""
    own = {
        name: replace(target.at(DIALECTS[name].PATH.removeprefix("/v1")), dialect=name)
        for name in map(_DIALECT_OF.get, target.apis) if name is not None
    }  # fmt: skip
    other = next((own[name] for name in TRANSLATED if name in own), None)
    return own if other is None else {name: other for name in TRANSLATED} | own


def _target(name: str, backend: BackendSettings, lane: str, how: LaneSettings, key: Secret | None) -> Target:
    return Target(
        key=f"{name}/{lane}",
        backend=name,
        lane=lane,
        provider=backend.provider or name,
        region=backend.region,
        dialect=backend.dialect,
        address=Address.of(backend.url),
        headers=_headers(backend, key),
        secret=key,
        set_fields={**({"service_tier": how.service_tier} if how.service_tier else {}), **how.set},
        priced_as=how.priced_as,
        connect_timeout_s=backend.connect_timeout_ms / 1e3,
        first_byte_timeout_s=backend.first_byte_timeout_ms / 1e3,
        idle_timeout_s=backend.idle_timeout_ms / 1e3,
        cache_salt=backend.cache_salt,
        max_tool_name=backend.max_tool_name,
        cache_ttl=backend.cache_ttl,
        batch=how.batch or how.offline,
        offline=how.offline,
        data_only=_data_only(backend),
        known_fields=known(backend),
        pool=name,
        base=backend.url,
        apis=backend.apis,
    )


def _data_only(backend: BackendSettings) -> bool:
    if backend.media_urls is not None:
        return backend.media_urls == "refuse"
    return is_inside(Address.of(backend.url).origin[1])


def _headers(backend: BackendSettings, key: Secret | None) -> tuple[tuple[bytes, bytes], ...]:
    """The credential, then what the settings add."""
    pairs = list(backend.headers.items())
    if key is not None:
        name = backend.key_header or ("x-api-key" if backend.dialect == "anthropic" else "authorization")
        pairs.insert(0, (name, f"Bearer {key.reveal()}" if name == "authorization" else key.reveal()))
    return tuple((name.lower().encode("ascii"), value.encode("latin-1")) for name, value in pairs)
