"""Pre-warms prompts: writes the beginning that many conversations share (tools, system prompt) into the provider's cache
shortly before they come, at the times that the team's policy names, where that is worth more than it costs.

Off unless the policy says what it may cost a day. The text is that of a call that had it, without its messages: held in this
process's memory, never on disk, so after a restart nothing is pre-warmed until it has come again. Such a call is an entry with
the client and tag `pre_warm`; it is paid from the team's budgets and from one of its own, and from nobody's key or project.
"""
from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from gateway import dialects
from gateway.budgets.windows import next_time
from gateway.caching import LIFETIME, PRE_WARM
from gateway.core import clock
from gateway.core.background import Background
from gateway.core.call import Call, Tenant
from gateway.core.errors import GatewayError
from gateway.dialects import splice
from gateway.fan_out import claimed
from gateway.planner import Planned, Planner
from gateway.planner.arrivals import LEAD_S, WINDOW_S, Offer
from gateway.planner.held import name_of
from gateway.planner.places import Page
from gateway.planner.values import Beginning, Life
from gateway.warming import AT_ONCE, DIALECT, MOST_BYTES, Nobody, Serve, Where, may_be_silent, only, silent
from router_policies.rules import Policy, Start

NAME = PRE_WARM
_FORGET_US = 8 * 86_400_000_000
"""A beginning that nobody came with for so long is let go: a week, and a day."""
_LEFT_OUT = ("tool_choice", "metadata", "diagnostics")
"""What is no part of a beginning, speaks of one caller, or is refused without output."""
_REFUSED = frozenset({400, 403, 404, 413, 422})
_EVERY_S, _MINUTE_US = 5.0, 60_000_000
_log = logging.getLogger("tollway.prewarming")


@dataclass(slots=True)
class _Kept:
    """`call`: one with that beginning, cut down to it; `seen_us`: when the last one came; `tried`: the last time for which it
    was looked at, by start."""

    call: Call
    where: Where
    pool: str
    beginning: Beginning
    wait_s: float
    seen_us: int
    tried: dict[Start, int] = field(default_factory=dict)


class _Due(NamedTuple):
    gain_usd: float
    name: int
    life: Life
    start: Start
    time_us: int


class PreWarmer(Background):
    """One per process; `serve` is the pipeline's, None: nothing is sent. Bounded by bytes of prompts, oldest out first."""

    task_name = "pre-warm"

    def __init__(self, planner: Planner, policy_of: Callable[[str], Policy], most_bytes: int = MOST_BYTES) -> None:
        self.serve: Serve | None = None
        self._planner, self._policy_of, self._most = planner, policy_of, most_bytes
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def note(self, call: Call, where: Where, planned: Planned, wait_s: float, value_usd_per_s: float) -> None:
        """A conversation's first call was answered; `wait_s`: how long its answer takes to begin for what it has to compute."""
        begins, page, starts = planned.beginning, planned.page, self._policy_of(call.tenant.team).cache.pre_warm_at
        if begins is None or page is None or page.dialect != DIALECT:
            return
        for start in starts:
            time_us = _time(start, (call.at_us - int(WINDOW_S * 1e6)) // _MINUTE_US)
            if call.at_us >= time_us - LEAD_S * 1e6:
                self._planner.arrivals.came(_about(begins.name, start), time_us, call.at_us, value_usd_per_s)
        known = self._drop(begins.name)
        if starts and may_be_silent(page.body, page.spans, _LEFT_OUT):
            cut = _cut(call, page, begins.first) if known is None else known.call
            tried = {} if known is None else known.tried
            self._keep(_Kept(cut, where, planned.pool, begins, wait_s, call.at_us, tried))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.turn(clock.now_us())
            except Exception:  # the next look may go better
                _log.exception("it could not be looked at what to pre-warm")

    async def turn(self, now_us: int) -> int:
        """Sends what is due, what gains most first; how many calls that was."""
        due = sorted([one for name in list(self._kept) for one in self._due(name, now_us)], key=lambda one: -one.gain_usd)
        sent = 0
        for at in range(0, len(due), AT_ONCE):
            sent += sum(await asyncio.gather(*[self._write(one) for one in due[at : at + AT_ONCE]]))
        return sent

    def _due(self, name: int, now_us: int) -> list[_Due]:
        """The times that are near, where it is worth to write it for them."""
        kept, found = self._kept[name], []
        cache = self._policy_of(kept.call.tenant.team).cache
        if self.serve is None or cache.pre_warm_usd_per_day <= 0 or now_us - kept.seen_us > _FORGET_US:
            self._drop(name)
            return []
        offer = Offer(kept.beginning, kept.wait_s, together=cache.fan_out_wait_ms > 0)
        for start in cache.pre_warm_at:
            time_us = _time(start, now_us // _MINUTE_US)
            if time_us - now_us > LEAD_S * 1e6 or kept.tried.get(start) == time_us:
                continue
            about = _about(name, start)
            self._planner.arrivals.expect(about, time_us)
            best = self._planner.arrivals.worth(about, time_us, offer)
            if best is None or self._planner.held.has(kept.pool, name_of(kept.pool, name), time_us):
                kept.tried[start] = time_us
            else:
                found.append(_Due(best[1], name, best[0], start, time_us))
        return found

    async def _write(self, due: _Due) -> bool:
        """Whether a call was sent. Where another process is writing it, the next look finds it stored, or tries again."""
        kept, now_us = self._kept.get(due.name), clock.now_us()
        if kept is None or kept.tried.get(due.start) == due.time_us or now_us >= due.time_us:
            return False
        kept.tried[due.start] = due.time_us
        async with claimed(self._planner, due.name) as begun:
            if begun is None:
                kept.tried.pop(due.start, None)
                return False
            status = await self._sent(kept, due.life, now_us)
            if status == 200:
                self._planner.held.store(kept.pool, name_of(kept.pool, due.name), now_us, due.life.seconds)
                begun()
        if status in _REFUSED and self._kept.get(due.name) is kept:
            self._drop(due.name)  # the provider does not take it
        return bool(status)

    async def _sent(self, kept: _Kept, life: Life, now_us: int) -> int:
        """What the provider answered; 0: nothing, or it was not asked."""
        client, policy = Nobody(), self._policy_of(kept.call.tenant.team)
        call = silent(kept.call, now_us, NAME)
        call = replace(call, tags={**call.tags, LIFETIME: life.name})
        try:
            if self.serve is not None:
                await self.serve(call, client, only(policy, kept.where, NAME, policy.cache.pre_warm_usd_per_day))
        except GatewayError as error:
            _log.info("a prompt is not pre-warmed: %s", error)
        except Exception:  # nobody waits for it
            _log.exception("a prompt could not be pre-warmed")
        return client.status

    def _keep(self, kept: _Kept) -> None:
        self._kept[kept.beginning.name] = kept
        self._bytes += len(kept.call.body)
        while self._bytes > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, name: int) -> _Kept | None:
        gone = self._kept.pop(name, None)
        if gone is not None:
            self._bytes -= len(gone.call.body)
        return gone


def _cut(call: Call, page: Page, first: int) -> Call:
    """The call, as its provider got it, with a prompt that ends before part `first`, of nobody in particular. The provider
    wants a message: it gets the shortest."""
    spans, body, last = page.spans, page.body, page.parts[first - 1]
    fields = {"messages": b'[{"role":"user","content":"."}]', "model": msgspec.json.encode(call.sketch.model)}
    gone = [*_LEFT_OUT, *(["system"] if last.field == "tools" else [])]
    if last.field == "system" and last.item >= 0:
        fields["system"] = body[spans["system"][0] : last.end] + b"]"
    cut = splice.change(body, spans, fields, gone)
    tenant = Tenant(team=call.tenant.team, key_id=NAME)
    return replace(
        call, body=cut, sketch=dialects.read(DIALECT, cut, tenant.team), dialect=DIALECT, path=dialects.DIALECTS[DIALECT].PATH,
        tenant=tenant, headers=call.headers if call.dialect == DIALECT else {},
    )  # fmt: skip


def _about(name: int, start: Start) -> int:
    """A beginning at a time of the policy's, to all processes."""
    return name_of(repr((start.hour, start.minute, sorted(start.days), start.timezone)), name)


@lru_cache(4_096)
def _time(start: Start, minute: int) -> int:
    """The first time of that start after a minute (since the epoch), microseconds."""
    return next_time(start.hour, start.minute, start.days, start.timezone, minute * _MINUTE_US)
