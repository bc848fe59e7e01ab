"""The values: what an engine can do, what it said at one moment, and what two moments tell together."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Bodies = Mapping[str, bytes | None]
"""Path -> body of a 200 answer, or None where there was none."""
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What an engine said; totals only grow while the process lives. None: it did not say."""

    running: int | None = None
    waiting: int | None = None
    waiting_tokens: int | None = None
    """Prompt tokens that wait, cached ones left out where the engine knows them: work, not heads."""
    kv_used: float | None = None
    """Share of the cache that requests hold, 0 to 1."""
    prompt_tokens_total: float | None = None
    cached_tokens_total: float | None = None
    preempted_total: float | None = None
    refused_total: float | None = None
    drafted_total: float | None = None
    accepted_total: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Live figures of one engine. Rates are over the time since the sample before."""

    at: float
    """Monotonic seconds of the sample."""
    running: int | None
    waiting: int | None
    waiting_tokens: int | None
    kv_used: float | None
    hit_rate: float | None
    """Cached share of the prompt tokens since the last sample, 0 to 1; None where none came."""
    acceptance: float | None
    """Share of drafted tokens that were right since the last sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a server was found to do; False where it may need a flag (`Engine.flags` has it)."""

    answers: bool = False
    """Whether it gave an answer to the first call; if not, nothing else was found out."""
    cached_tokens: bool = False
    priority: bool = False
    salt: bool = False
    load: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What the gateway wants of an engine for one call."""

    salt: str | None = None
    """Separates prefix caches: one per team."""
    urgency: float = 0.5
    """0 (nobody waits) to 1 (somebody does, now)."""
    session: str | None = None
    team: str | None = None
    objective: str | None = None
    """Class of the call, for routers that know such names."""


def _no_headers(intent: Intent) -> Headers:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A product: where it tells its figures, how to read them, how it is told what is wanted."""

    name: str
    paths: Sequence[str]
    """What to GET under the server's root, all of them each time."""
    read: Callable[[Bodies], Sample]
    salt_field: str | None = None
    clean_salt: Callable[[str], str] = str
    priority: Callable[[float], int | float] | None = None
    """Urgency to the engine's own scale; None where it has none."""
    headers: Callable[[Intent], Headers] = _no_headers
    health: str = "/health"
    events: Literal["zmq", "sse", "drain"] | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    """Capability -> what to start the server with to have it."""

    def prepare(self, intent: Intent, can: Capabilities) -> tuple[dict[str, Any], Headers]:
        """Body fields and headers for one call. A priority goes only where the probe saw it taken: vLLM refuses others."""
        fields: dict[str, Any] = {}
        if intent.salt and self.salt_field is not None:
            fields[self.salt_field] = self.clean_salt(intent.salt)
        if can.priority and self.priority is not None:
            fields["priority"] = self.priority(intent.urgency)
        return fields, self.headers(intent)


def between(before: Sample | None, now: Sample, at: float) -> Load:
    """Two samples as live figures; a total that fell means a restart, so that interval tells nothing."""
    return Load(
        at=at, running=now.running, waiting=now.waiting, waiting_tokens=now.waiting_tokens, kv_used=now.kv_used,
        hit_rate=None if before is None else _share(
            _grown(before.cached_tokens_total, now.cached_tokens_total),
            _grown(before.prompt_tokens_total, now.prompt_tokens_total),
        ),
        acceptance=None if before is None else _share(
            _grown(before.accepted_total, now.accepted_total), _grown(before.drafted_total, now.drafted_total)
        ),
    )  # fmt: skip


def _grown(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None or now < before else now - before


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else min(part / whole, 1.0)
