"""Who asks, for what, in which dialect: the facts of one call before anything was decided about it."""
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.core.part import Part

LONG_BYTES = 2 * 1024 * 1024
"""Bodies above it are read in a thread. Below, handing it over costs all other calls as much as reading it here."""

PASSED_ON = "other"
"""The dialect of a request that is only passed on."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """Who a key belongs to; every budget, cache and report is scoped by it."""

    team: str
    key_id: str
    project: str | None = None
    user: str | None = None
    admin: bool = False
    lead: bool = False
    """May look after the team's keys, projects and people."""
    budget: tuple[int, str, str] | None = None
    """What this key may spend beside its team's budgets: nano-dollars, window, time zone."""
    models: tuple[str, ...] = ()
    """Patterns of the models that the key may name; none: all that the team's policy allows."""


class Sketch(msgspec.Struct, frozen=True, kw_only=True):
    """What the hot path needs to know of a request body, read without decoding its messages or tools.

    `spans` maps each top-level key to the byte range of its value in the body, so that a change is a splice and never
    a re-serialization.
    """

    model: str
    stream: bool
    spans: Mapping[str, tuple[int, int]]
    parts: Sequence[Part] = ()
    """Of the prompt, in the order in which the provider renders them."""
    max_output_tokens: int | None = None
    answers: int | None = None
    """How many are asked for at once, where that was read already."""
    service_tier: str | None = None
    wants_usage: bool = True
    """Whether the client asked for usage in its stream (always true where the dialect sends it anyway)."""
    has_tools: bool = False
    previous_id: str | None = None
    """The earlier answer this one goes on from, where the provider has stored it (`previous_response_id`)."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a client. What is learnt later (decision, outcome, cost) is a later value, never a field here."""

    id: str
    dialect: str
    """A key of `gateway.dialects.DIALECTS`, e.g. `openai_chat`."""
    tenant: Tenant
    sketch: Sketch
    body: bytes
    path: str
    client: str
    """The User-Agent's first product, lower case, e.g. `openai/python`."""
    headers: Mapping[str, str] = {}
    """Lower-case names; credentials and cookies already taken out."""
    tags: Mapping[str, str] = {}
    run: str | None = None
    parent_run: str | None = None
    subgoal: str | None = None
    at_us: int = 0
    """When it arrived, microseconds since the epoch, UTC."""
    came_s: float = msgspec.field(default_factory=lambda: time.monotonic())
    """The same on the clock that never jumps: what the call may take is reckoned from there."""
    sent: dict[Any, Any] = {}
    """Memo of `backends.upstream`: what of the headers goes on to each target; shared by all calls with the same head."""
