"""A burst over workers and replicas: a cold prefix that all of it shares is written once."""
from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.providers.rules import PROVIDERS
from benchmarks.providers.server import Providers, Seen
from tests.build import PLAIN, Process
from tests.redis_server import Server
from tests.upstream import until

Json = dict[str, Any]
WRITERS = ("anthropic", "openai-5.6", "openai", "kimi", "qwen", "gemini")
POLICY = {**PLAIN, "cache": {"hold_out": 0, "fan_out_wait_ms": 120_000}, "classes": {"patient": {"value_usd_per_hour": 0}}, "default_class": "patient"}
"""Whoever waits in vain waits long: a test that rests on waiting fails by what it counts."""


class Caller:
    """One connection to a gateway, kept alive, and which of its processes is at the other end."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._http = httpx.Client(verify=False, trust_env=False, timeout=120, headers={"authorization": f"Bearer {process.key('planned')}"})
        answer = self._http.get(process.url + "/healthz")
        port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
        family = [psutil.Process(process.process.pid), *psutil.Process(process.process.pid).children()]
        self.pid = next(each.pid for each in family for link in each.net_connections() if link.raddr and link.raddr.port == port and link.laddr.port == process.port)

    def ask(self, provider: str, body: Json) -> int:
        path = "/v1/messages" if PROVIDERS[provider].wire == "anthropic" else "/v1/chat/completions"
        return self._http.post(self._process.url + path, json={"model": f"{provider}-model", **body}).status_code

    def close(self) -> None:
        self._http.close()


@pytest.fixture(scope="module")
def providers() -> Iterator[Providers]:
    with Providers(time.time) as running:
        yield running


@pytest.fixture(scope="module")
def redis() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


def started(providers: Providers, folder: Path, workers: int = 1, **fields: Any) -> Process:
    backends = {
        name: {"dialect": each.wire, "url": providers.url(name), "key": "env:PROVIDER_KEY", "provider": each.priced_as, "models": {f"{name}-model": each.model}}
        for name, each in PROVIDERS.items() if name in WRITERS
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    return Process(folder, {"backends": backends, **fields}, {"planned": POLICY}, workers=workers)


@pytest.fixture(scope="module")
def workers(providers: Providers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Caller]]:
    """Ten connections to two workers, some to each."""
    with started(providers, tmp_path_factory.mktemp("workers"), 2) as process:
        yield from ten(process)


@pytest.fixture(scope="module")
def replicas(providers: Providers, redis: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Caller]]:
    """Ten connections to two gateways that share nothing but Redis, five to each."""
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(started(providers, tmp_path_factory.mktemp("replica"), redis_url=redis.url, redis_timeout_ms=30_000)) for _ in range(2)]
        callers = [Caller(process) for process in both for _ in range(5)]
        yield callers
        for caller in callers:
            caller.close()


def ten(process: Process) -> Iterator[list[Caller]]:
    callers: list[Caller] = []
    while len(callers) < 200 and not enough(callers):
        callers.append(Caller(process))
    assert enough(callers)
    first, second = (by_worker(callers)[pid] for pid in sorted(by_worker(callers)))
    few = min(len(first), len(second), 5)
    yield (first[:few] + second[: 10 - few]) if len(first) <= len(second) else (first[: 10 - few] + second[:few])
    for caller in callers:
        caller.close()


def by_worker(callers: Sequence[Caller]) -> dict[int, list[Caller]]:
    return {pid: [caller for caller in callers if caller.pid == pid] for pid in {caller.pid for caller in callers}}


def enough(callers: Sequence[Caller]) -> bool:
    return len(callers) >= 10 and len(by_worker(callers)) == 2 and min(map(len, by_worker(callers).values())) >= 3


def bodies(provider: str, name: str, count: int = 10) -> list[Json]:
    """Questions behind the same 50,000 tokens."""
    prefix = f"{name} {provider} " + "toll road " * 20_000
    system = {"system": prefix} if provider == "anthropic" else {}
    first = [] if system else [{"role": "system", "content": prefix}]
    return [{"max_tokens": 9, **system, "messages": [*first, {"role": "user", "content": f"question {n}"}]} for n in range(count)]


def burst(providers: Providers, callers: Sequence[Caller], provider: str, asked: Sequence[Json], delay_s: float = 0.5) -> list[Seen]:
    """One call on each connection at once; answers begin after a while."""
    before, providers.delay_s = len(providers.seen), delay_s
    try:
        with ThreadPoolExecutor(len(callers)) as pool:
            assert list(pool.map(lambda caller, body: caller.ask(provider, body), callers, asked)) == [200] * len(callers)
    finally:
        providers.delay_s = 0.0
    return providers.seen[before:]


def reads(seen: Sequence[Seen]) -> list[bool]:
    return sorted(each.used.read > 49_000 for each in seen if each.used is not None)


@pytest.mark.parametrize("provider", WRITERS)
def test_two_workers_write_a_cold_prefix_once(workers: list[Caller], providers: Providers, provider: str) -> None:
    """Ten calls, 50,000 tokens in common: one write, nine reads."""
    assert reads(burst(providers, workers, provider, bodies(provider, "workers"))) == [False] + [True] * 9


@pytest.mark.parametrize("provider", WRITERS)
def test_two_replicas_on_one_redis_write_a_cold_prefix_once(replicas: list[Caller], providers: Providers, provider: str) -> None:
    assert reads(burst(providers, replicas, provider, bodies(provider, "replicas"))) == [False] + [True] * 9


def dies(providers: Providers, leader: Caller, followers: Sequence[Caller], name: str) -> list[Seen]:
    """The process of a call that is writing is killed; what the provider sees of calls elsewhere that wait for it."""
    asked, before = bodies("anthropic", name, 1 + len(followers)), len(providers.seen)
    with ThreadPoolExecutor(len(asked)) as pool:
        providers.delay_s = 300.0
        first: Future[int] = pool.submit(leader.ask, "anthropic", asked[0])
        until(lambda: len(providers.seen) > before, "the leader's request")
        providers.delay_s = 0.3
        rest = [pool.submit(caller.ask, "anthropic", body) for caller, body in zip(followers, asked[1:], strict=True)]
        time.sleep(0.5)  # so that they wait; who comes later finds no leader, which is as good
        assert len(providers.seen) == before + 1
        os.kill(leader.pid, signal.SIGKILL)
        assert [each.result(60) for each in rest] == [200] * len(rest)
        with pytest.raises(httpx.HTTPError):
            first.result(60)
    providers.delay_s = 0.0
    return providers.seen[before + 1 :]


def test_a_worker_that_dies_while_it_writes_frees_the_others(providers: Providers, tmp_path: Path) -> None:
    """One of them writes, the rest read."""
    with started(providers, tmp_path, 2) as process:
        for callers in ten(process):
            groups = list(by_worker(callers).values())
            assert reads(dies(providers, groups[0][0], groups[1][:3], "dies")) == [False, True, True]


def test_a_replica_that_dies_while_it_writes_frees_the_others(providers: Providers, redis: Server, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        one, two = (stack.enter_context(started(providers, tmp_path / name, redis_url=redis.url, redis_timeout_ms=30_000)) for name in ("one", "two"))
        leader, *followers = [stack.enter_context(contextlib.closing(Caller(process))) for process in (one, two, two, two)]
        assert reads(dies(providers, leader, followers, "replica dies")) == [False, True, True]
