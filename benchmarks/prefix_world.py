"""The real gateway in front of the simulated providers, in one process and on one clock that the benchmark moves."""
from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvloop

from benchmarks.providers.rules import PROVIDERS
from benchmarks.providers.server import PATHS, Providers, Seen
from gateway import app, settings
from gateway.serve import bind, server

_TEAM = {"normalize": {"hold_out": 0}, "cache": {"hold_out": 0}}
AT_ONCE_S = 0.15
"""Real seconds until an answer begins, where requests come at once."""


class Clock:
    """`time.time` and `time.time_ns` of this process: real time, moved ahead by `set`."""

    def __init__(self) -> None:
        self._real, self._real_ns = time.time, time.time_ns
        self.start_s = time.time()
        self._ahead_ns = 0

    def set(self, at_s: float) -> None:
        """It is `at_s` after the start now; it goes on from there."""
        self._ahead_ns = int((self.start_s + at_s) * 1e9) - self._real_ns()

    def now_ns(self) -> int:
        return self._real_ns() + self._ahead_ns

    def now_s(self) -> float:
        return self.now_ns() / 1e9

    def __enter__(self) -> Clock:
        time.time_ns, time.time = self.now_ns, self.now_s
        return self

    def __exit__(self, *_: object) -> None:
        time.time_ns, time.time = self._real_ns, self._real


class Declined(Exception):
    """A request was not taken. `by_provider`: it reached the provider, who refused it."""

    def __init__(self, why: str, *, by_provider: bool) -> None:
        super().__init__(why)
        self.by_provider = by_provider


class World:
    """Sends requests through the gateway and says what the providers saw."""

    def __init__(self, clock: Clock, providers: Providers, url: str, key: str, folder: Path) -> None:
        self.clock, self.providers, self.url, self.key, self.folder = clock, providers, url, key, folder
        self.inside: Callable[[Callable[[app.Gateway], Coroutine[Any, Any, Any]]], Future[Any]]
        """Has something done on the gateway's own loop."""
        self._http = httpx.Client(trust_env=False, verify=False, timeout=60)
        self._pool = ThreadPoolExecutor(16)

    def send(self, provider: str, team: str, bodies: Sequence[bytes], at_s: float) -> list[Seen]:
        """Bodies that come at the same moment; what the provider counted of each. Raises `Declined` if one is not taken, and
        `RuntimeError` for a fault."""
        self.clock.set(at_s)
        before = len(self.providers.seen)
        self.providers.delay_s = AT_ONCE_S if len(bodies) > 1 else 0.0
        path = PATHS[PROVIDERS[provider].wire]
        send = self._pool.map if len(bodies) > 1 else map
        for answer in send(lambda body: self._one(path, team, body), bodies):
            if 400 <= answer.status_code < 500:
                refused = [seen for seen in self.providers.seen[before:] if seen.used is None]
                raise Declined(f"{answer.status_code}: {answer.text[:300]}", by_provider=bool(refused))
            if answer.status_code != 200:
                raise RuntimeError(f"{provider}: the gateway answered {answer.status_code}: {answer.text[:300]}")
        return self.providers.seen[before:]

    def _one(self, path: str, team: str, body: bytes) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json", "user-agent": f"{team}/1"}
        return self._http.post(self.url + path, content=body, headers=headers)

    def close(self) -> None:
        self._pool.shutdown()
        self._http.close()


@contextmanager
def world(policy: Mapping[str, Any] | None = None, **fields: Any) -> Iterator[World]:
    """A fresh gateway that knows nothing; one backend for each simulated provider, models by the provider's name. `fields`: its
    other settings."""
    with Clock() as clock, Providers(clock.now_s) as providers, gateway(clock, providers, policy, **fields) as made:
        yield made


@contextmanager
def gateway(clock: Clock, providers: Providers, policy: Mapping[str, Any] | None = None, **fields: Any) -> Iterator[World]:
    """One gateway in a world that is there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "teams").mkdir()
        team = {"team": "bench", **_TEAM, **(policy or {})}
        (folder / "teams" / "bench.yaml").write_text(json.dumps(team))
        (folder / "tollway.yaml").write_text(json.dumps({
            "backends": {each: _backend(each, providers) for each in PROVIDERS}, "policies": "teams", "data": "data", **fields,
        }))  # fmt: skip
        asgi = app.build(settings.load(folder / "tollway.yaml"), demo_team="bench")
        uvicorn = server(asgi, drain_s=1)
        sock = bind("127.0.0.1", 0, "--port")
        loop = uvloop.new_event_loop()

        def serve() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(uvicorn.serve(sockets=[sock]))

        thread = threading.Thread(target=serve, daemon=True, name="gateway")
        thread.start()
        while not uvicorn.started and thread.is_alive():
            time.sleep(0.02)
        key = (folder / "data" / "keys" / "demo").read_text().strip()
        made = World(clock, providers, f"http://127.0.0.1:{sock.getsockname()[1]}", key, folder)
        made.inside = lambda work: asyncio.run_coroutine_threadsafe(work(asgi), loop)
        try:
            yield made
        finally:
            made.close()
            uvicorn.should_exit = True
            thread.join(20)


def _backend(name: str, providers: Providers) -> dict[str, Any]:
    provider = PROVIDERS[name]
    return {"dialect": provider.wire, "url": providers.url(name), "provider": provider.priced_as or "own",
            "media_urls": "pass", "models": {f"{name}-model": provider.model}}  # fmt: skip
