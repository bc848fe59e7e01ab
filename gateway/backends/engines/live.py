"""Engines of one's own in use: how busy they are, what they were found to take, what their caches let go.

Off the path of calls, but for `prepare`, which is a few dictionary look-ups; nothing without `engine:` or `kv_events:`.
"""
from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import Any

from gateway.backends.engines import ENGINES
from gateway.backends.engines.feed import Feed, Told, ask, request_to
from gateway.backends.engines.figures import Capabilities, Intent
from gateway.backends.engines.watch import Watch, probe
from gateway.backends.fleet import Fleet, Target
from gateway.backends.http import Transport
from gateway.lanes.load import Load
from gateway.settings import Settings

_log = logging.getLogger("tollway")
_TIMEOUT_S = 2.0
_PROBE_TIMEOUT_S = 60.0
_PROBE_AGAIN_S = 15.0
_MOST_BYTES = 8 << 20
_CLASS_IN_THE_MIDDLE_USD = 10.0
"""Dollars an hour that make a call neither urgent nor idle."""


class Live:
    """One watch per backend that names its engine, one feed per backend that says where it publishes."""

    def __init__(self, settings: Settings, fleet: Fleet, transport: Transport, told: Told = lambda *_: None) -> None:
        self._fleet, self._tasks = fleet, list[asyncio.Task[None]]()
        self.watches: dict[str, Watch] = {}
        self.can: dict[str, Capabilities] = {}
        """What each was found to do, once it has answered."""
        self.feeds: dict[str, Feed] = {}
        self._probes: dict[str, partial[Any]] = {}
        for target in fleet.targets.values():
            name, backend = target.backend, settings.backends[target.backend]
            if backend.engine is not None and name not in self.watches:
                engine, models = ENGINES[backend.engine], backend.by_name
                self.watches[name] = Watch(engine=engine, fetch=partial(_fetch, transport, target, _TIMEOUT_S))
                model = next((how.upstream or known for known, how in models.items()), "")
                self._probes[name] = partial(probe, engine, partial(_fetch, transport, target, _PROBE_TIMEOUT_S), model)
            if backend.kv_events is not None and name not in self.feeds:
                drained = backend.engine is not None and ENGINES[backend.engine].events == "drain"
                self.feeds[name] = Feed(
                    target=target, transport=transport, where=backend.kv_events, replay=backend.kv_replay, drained=drained,
                    told=told,
                )  # fmt: skip

    def start(self) -> None:
        self._tasks = [
            *(asyncio.create_task(self._follow(name), name=f"engine {name}") for name in self.watches),
            *(asyncio.create_task(self.find_out(name), name=f"probe {name}") for name in self._probes),
            *(asyncio.create_task(feed.run(), name=f"events {name}") for name, feed in self.feeds.items()),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def prepare(self, target: Target, intent: Intent, fields: dict[str, Any]) -> Target:
        """Writes what the engine is told into the call's fields; the target with the headers it is told by."""
        watch = self.watches.get(target.backend)
        if watch is None:
            if intent.salt is not None:
                fields["cache_salt"] = intent.salt
            return target
        more, headers = watch.engine.prepare(intent, self.can.get(target.backend, _UNKNOWN))
        fields.update(more)
        return replace(target, headers=(*target.headers, *headers)) if headers else target

    def found(self) -> list[dict[str, Any]]:
        """Each engine with what it does, and what to start it with for what it does not."""
        told = []
        for name, watch in self.watches.items():
            does, flags = self._does(name), watch.engine.flags
            told.append({
                "backend": name, "engine": watch.engine.name, "answers": name in self.can, "problem": watch.problem,
                "does": does, "flags": {what: flags[what] for what in flags if not does.get(what, True)},
            })  # fmt: skip
        return told

    def loading(self) -> list[str]:
        """Backends that take calls and answer none yet."""
        return [name for name, feed in self.feeds.items() if feed.loading]

    @property
    def all_loading(self) -> bool:
        """No backend can answer yet."""
        return bool(self.loading()) and {target.backend for target in self._fleet.targets.values()} <= set(self.loading())

    def notes(self) -> list[str]:
        """What is not as it should be: cached tokens that nobody counts, events that do not come, models that still load."""
        said = [f"engine {name}: no KV events ({feed.problem})" for name, feed in self.feeds.items() if feed.problem]
        said += [f"engine {name}: its model is loading; calls wait for it" for name in self.loading()]
        for name, can in self.can.items():
            flag = self.watches[name].engine.flags.get("cached_tokens")
            if flag is not None and not can.cached_tokens:
                said.append(f"engine {name}: it does not tell cached tokens; start it with {flag}")
        return said

    async def find_out(self, backend: str) -> None:
        """Probes until the server has answered once, then says in the log what it lacks."""
        while True:
            try:
                can = await self._probes[backend]()
            except OSError:
                can = None
            if can is not None and can.answers:
                break
            await asyncio.sleep(_PROBE_AGAIN_S)
        self.can[backend] = can
        flags, does = self.watches[backend].engine.flags, self._does(backend)
        _log.info("engine %s: %s", backend, does)
        for what in ("cached_tokens", "priority", "load"):
            if what in flags and not does[what]:
                _log.warning("engine %s does not do %s; start it with %s", backend, what, flags[what])

    def _does(self, backend: str) -> dict[str, bool]:
        can, feed = self.can.get(backend, Capabilities()), self.feeds.get(backend)
        return {
            "cached_tokens": can.cached_tokens, "priority": can.priority, "salt": can.salt, "load": can.load,
            "kv_events": feed is not None and feed.heard,
        }  # fmt: skip

    async def _follow(self, backend: str) -> None:
        watch = self.watches[backend]
        while watch.engine.paths:
            await self.look(backend)
            await asyncio.sleep(watch.every_s)

    async def look(self, backend: str) -> None:
        """One round: fresh figures go to every lane of the backend; where there are none, what they had grows old."""
        watch = self.watches[backend]
        await watch.look()
        found = watch.load()
        if found is None or found.running is None or found.waiting is None:
            return
        load = Load(found.at, found.running, found.waiting, found.waiting_tokens, found.kv_used, found.hit_rate)
        for key, target in self._fleet.targets.items():
            if target.backend == backend:
                self._fleet.probes[key].load = load


_UNKNOWN = Capabilities()


def urgency(usd_per_hour: float) -> float:
    """0 for a class whose waiting costs nothing, towards 1 for one that costs much."""
    return usd_per_hour / (usd_per_hour + _CLASS_IN_THE_MIDDLE_USD)


async def _fetch(
    transport: Transport, target: Target, timeout_s: float, method: str, path: str, body: bytes | None
) -> tuple[int, bytes]:
    """Status and body. Raises `OSError` where nothing comes."""
    whole = bytearray()

    def take(piece: bytes) -> bool:
        whole.extend(piece)
        return len(whole) <= _MOST_BYTES

    more = [] if body is None else [(b"content-type", b"application/json")]
    status = await ask(transport, request_to(target, method, path, timeout_s, body or b"", more), take)
    if len(whole) > _MOST_BYTES:
        raise OSError("its figures are too long")
    return status, bytes(whole)
