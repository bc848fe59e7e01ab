"""Keeps prompts warm: asks for a stored prefix once more, for no output, shortly before it would expire, where it is likely
enough to be asked for again and reading it is that much cheaper than writing it anew.

Off unless a team's policy says what it may cost a day. A ping is a call of its own: an entry with the tag `tollway: keep_warm`,
paid from the team's budgets and from one of its own, at the lane that has the prefix. The next turn of a conversation takes
the place of the one before; what nobody is likely to ask for again is let go.
"""
from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import NamedTuple

from msgspec.structs import replace as with_fields

from gateway import dialects
from gateway.caching import KEEP_WARM
from gateway.core import clock
from gateway.core.background import Background
from gateway.core.call import Call
from gateway.core.errors import GatewayError
from gateway.core.ids import new_id
from gateway.dialects import splice
from gateway.planner import Planned
from gateway.planner.values import Warm
from gateway.relay import Client, Headers
from router_policies.globs import Glob
from router_policies.rules import Budget, Klass, Policy

TAG, NAME = "tollway", KEEP_WARM
DIALECT = "anthropic_messages"
_OF_THE_CALL = ("x-tollway", "x-stainless", "idempotency-key")
"""Headers that speak of the call that they came with."""
_MARGIN = 0.1
"""Share of a lifetime that is left when the ping goes out."""
_CLEARLY = 1.5
"""How many times its cost a ping should be worth."""
_EVERY_S, MOST_BYTES, AT_ONCE = 1.0, 32 << 20, 8
_log = logging.getLogger("tollway.warming")

Serve = Callable[[Call, Client, Policy], Awaitable[None]]


@dataclass(slots=True)
class _Kept:
    call: Call
    where: Where
    warm: Warm
    came_us: int
    due_us: int


class Where(NamedTuple):
    """A lane that has a prompt in its cache."""

    backend: str
    lane: str


class Nobody(Client):
    """Whom an answer without words goes to."""

    __slots__ = ("status",)

    def __init__(self) -> None:
        super().__init__()
        self.status = 0

    def begin(self, status: int, headers: Headers) -> None:
        self.started, self.status = True, status

    def write(self, data: bytes) -> bool:
        return True

    async def drained(self) -> None:
        return None

    async def end(self, data: bytes = b"") -> None:
        self.ended = True

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.begin(status, headers)
        await self.end()


class Warmer(Background):
    """One per process; `serve` is the pipeline's. Bounded by bytes of prompts, oldest out first."""

    task_name = "keep-warm"

    def __init__(self, policy_of: Callable[[str], Policy], most_bytes: int = MOST_BYTES) -> None:
        self.serve: Serve | None = None
        self.ended: Callable[[str, int], bool] = lambda key_id, now_us: False
        """Whether a key, by its id, is good no more: what it was used for is kept warm for nobody."""
        self._policy_of, self._most = policy_of, most_bytes
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def note(self, call: Call, session: str, where: Where, planned: Planned) -> None:
        """A call was answered whose prefix may be worth keeping."""
        warm = planned.warm
        if warm is None or not session or call.client == NAME:
            return
        self._drop((call.tenant.team, session))
        if call.dialect != DIALECT or not may_be_silent(call.body, call.sketch.spans) or len(call.body) > self._most:
            return
        self._kept[call.tenant.team, session] = _Kept(call, where, warm, call.at_us, _due(call.at_us, warm))
        self._bytes += len(call.body)
        while self._bytes > self._most:
            self._drop(next(iter(self._kept)))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            if self._kept:
                await self.turn(clock.now_us())

    async def turn(self, now_us: int) -> int:
        """Sends the pings that are due; how many."""
        due = [key for key, kept in self._kept.items() if kept.due_us <= now_us]
        worth = []
        for key in due:
            kept = self._kept[key]
            in_time = now_us < kept.due_us + int(kept.warm.life_s * _MARGIN * 1e6)
            if in_time and not self.ended(kept.call.tenant.key_id, now_us) and _worth(kept, now_us):
                worth.append(key)
            else:
                self._drop(key)
        for start in range(0, len(worth), AT_ONCE):
            await asyncio.gather(*[self._ping(key, self._kept[key], now_us) for key in worth[start : start + AT_ONCE]])
        return len(worth)

    async def _ping(self, key: tuple[str, str], kept: _Kept, now_us: int) -> None:
        policy = self._policy_of(kept.call.tenant.team)
        if self.serve is None or policy.cache.keep_warm_usd_per_day <= 0:
            self._drop(key)
            return
        client = Nobody()
        try:
            alone = only(policy, kept.where, NAME, policy.cache.keep_warm_usd_per_day)
            await self.serve(silent(kept.call, now_us, NAME), client, alone)
        except GatewayError as error:
            _log.info("a prefix is not kept warm: %s", error)
        except Exception:  # nobody waits for it
            _log.exception("a prefix could not be kept warm")
        if self._kept.get(key) is kept:  # no turn has come meanwhile
            if client.status == 200:
                kept.due_us = _due(now_us, kept.warm)
            else:
                self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self._bytes -= len(gone.call.body)


def silent(call: Call, now_us: int, name: str) -> Call:
    """The same prompt, asked for no output by the gateway itself."""
    body = splice.change(call.body, call.sketch.spans, {"max_tokens": b"0", "stream": b"false"})
    headers = {name: value for name, value in call.headers.items() if not name.startswith(_OF_THE_CALL)}
    return with_fields(
        call, id=new_id("call_", now_us), body=body, sketch=dialects.read(DIALECT, body, call.tenant.team), client=name,
        tags={TAG: name}, run=None, parent_run=None, subgoal=None, at_us=now_us, came_s=time.monotonic(), headers=headers,
        sent={},
    )  # fmt: skip


def only(policy: Policy, where: Where, name: str, usd_per_day: float) -> Policy:
    """The team's policy for a silent call: that lane and model alone, the prompt as it was sent, a budget of its own, and a
    class in which nobody waits."""
    klass = Klass(name=name, lanes=(Glob(where.lane),))
    return replace(
        apart(policy, name, usd_per_day),
        backends=(Glob(where.backend),),
        classes={name: klass},
        default_class=name,
        projects={},
        rules=(),
        models=replace(policy.models, fallbacks={}),
        normalize=replace(policy.normalize, level="off"),
        cache=replace(policy.cache, hold_out=0.0, fan_out_wait_ms=0.0),
        client_may=replace(policy.client_may, set_tags=True, choose_class=False),
        explore=0.0,
    )


def apart(policy: Policy, name: str, usd_per_day: float) -> Policy:
    """The team's policy for calls of the gateway's own, by the name of their tag: with a budget of their own beside the
    team's. Where a budget is spent they stop, and go nowhere else."""
    own = Budget(name=name, limit_usd=Decimal(str(usd_per_day)), window="day", scope=f"tag:{TAG}")
    budgets = [
        replace(budget, on_exhausted="reject", downgrade=None) if budget.on_exhausted == "downgrade" else budget
        for budget in policy.budgets
    ]
    return replace(policy, version=f"{policy.version}+{name}", budgets=(*budgets, own))


def may_be_silent(body: bytes, spans: splice.Spans, ignored: Collection[str] = ()) -> bool:
    """Whether the provider takes a request for no output; it refuses one with thinking, structured output or a forced tool.
    `ignored`: fields that will not be sent."""
    asked = [name for name in ("thinking", "tool_choice", "output_config") if name in spans and name not in ignored]
    value = {name: body[slice(*spans[name])] for name in asked}
    forced = b'"any"' in value.get("tool_choice", b"") or b'"tool"' in value.get("tool_choice", b"")
    return not forced and b"enabled" not in value.get("thinking", b"") and b"format" not in value.get("output_config", b"")


def _due(from_us: int, warm: Warm) -> int:
    return from_us + int(warm.life_s * (1 - _MARGIN) * 1e6)


def _worth(kept: _Kept, now_us: int) -> bool:
    """Whether it will come in the time that a ping buys, likely enough."""
    warm, waited_s = kept.warm, (now_us - kept.came_us) / 1e6
    left = 1.0 - warm.chance.by(waited_s)
    comes = (warm.chance.by(waited_s + warm.life_s) - warm.chance.by(waited_s)) / left if left > 0 else 0.0
    return comes * warm.saved_usd > _CLEARLY * warm.read_usd
