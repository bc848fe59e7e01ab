"""C5, C6: PostgreSQL and Redis behind bad wires, and PostgreSQL on a full disk: no call fails, and in the end all agree."""
from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.core.money import nanos
from tests.build import PLAIN, Process, backend, chat_answer
from tests.fault_proxy import FaultProxy
from tests.flow.test_disk import fill
from tests.flow.test_replicas import Load, booked, status
from tests.ledger.postgres import Postgres, binaries
from tests.redis_server import Server
from tests.upstream import Site, Upstream, until, whole

Run = Callable[..., Process]
BUDGETS = [{"name": "cap", "limit_usd": 1000, "window": "total"}]
CALLS = 60
OUTPUT = 16
"""At most so many tokens: a call then holds about what it comes to."""
COST_NANOS = 160_000
"""Of one call: 40 uncached tokens, 60 cached, 5 of output."""


@pytest.fixture
def site(upstream: Upstream, tmp_path: Path) -> Site:
    site = upstream.site(tmp_path.name)
    site.says(whole(chat_answer()))
    return site


@pytest.fixture
def run(tmp_path: Path, site: Site) -> Iterator[Run]:
    """Starts a gateway with these settings."""
    with contextlib.ExitStack() as stack:

        def start(name: str, **config: Any) -> Process:
            (tmp_path / name).mkdir()
            config = {"backends": {"b": backend(site)}, "key_pepper": "env:PEPPER", **config}
            env = {"PEPPER": "a pepper that replicas share"}
            return stack.enter_context(Process(tmp_path / name, config, {"plain": {**PLAIN, "budgets": BUDGETS}}, env=env))

        yield start


@pytest.fixture
def wire() -> Iterator[Callable[[int], FaultProxy]]:
    with contextlib.ExitStack() as stack:

        def lay(port: int) -> FaultProxy:
            proxy = FaultProxy(port)
            stack.callback(proxy.close)
            return proxy

        yield lay


@contextlib.contextmanager
def postgres(**how: Any) -> Iterator[Postgres]:
    bin_dir = binaries()
    assert bin_dir is not None, "no PostgreSQL: install the test extra"
    server = Postgres(bin_dir, **how)
    try:
        yield server
    finally:
        server.stop()


def mode(process: Process, what: str = "mode") -> str:
    found: str = process.http.get(process.url + "/readyz").json()[what]
    return found


def exact(process: Process, load: Load, site: Site) -> None:
    """All calls were answered, and are in the database once."""
    load.stop()
    assert load.refused == []
    until(lambda: set(load.ids) <= set(booked(process, site)), "all calls in the database")
    assert set(booked(process, site).values()) == {1}
    assert "Traceback" not in process.text()


@pytest.mark.parametrize(("loses", "cuts", "silent"), [(0.3, 0.0, False), (0.1, 0.1, False), (0.0, 0.0, True)], ids=["loses", "cuts", "silent"])
def test_the_database_is_behind_a_bad_wire(run: Run, wire: Any, site: Site, loses: float, cuts: float, silent: bool) -> None:
    with postgres(durable=True) as server:
        proxy = wire(server.port)
        process = run("one", database_url=server.hasty_url.replace(str(server.port), str(proxy.port)))
        key = process.key()
        assert status(process, key, site) == 200
        with Load(process, key, site) as load:
            until(lambda: len(load.ids) > 20, "calls")
            proxy.loses, proxy.cuts = loses, cuts
            if silent:
                proxy.silence()
                until(lambda: mode(process) == "spool", "spool mode")
            else:
                until(lambda: proxy.lost + proxy.cut > 10, "packets that are lost")
            during = len(load.ids)
            until(lambda: len(load.ids) > during + CALLS, "calls meanwhile")
            proxy.heal()
            until(lambda: mode(process) == "normal", "normal mode")
            exact(process, load, site)


@pytest.mark.parametrize(("loses", "cuts", "silent"), [(0.05, 0.0, False), (0.0, 0.02, False), (0.0, 0.0, True)], ids=["loses", "cuts", "silent"])
def test_redis_is_behind_a_bad_wire(run: Run, wire: Any, site: Site, loses: float, cuts: float, silent: bool) -> None:
    """Calls go on within leases, here far above what the calls hold at once; in the end Redis says what the ledger says."""
    server = Server()
    try:
        proxy = wire(server.port)
        process = run("one", redis_url=server.url.replace(str(server.port), str(proxy.port)))
        key = process.key()
        with Load(process, key, site, max_tokens=OUTPUT) as load:
            until(lambda: _leased_nanos(server) > 500 * COST_NANOS, "money drawn ahead for many calls")
            drawn = len(load.ids)
            until(lambda: len(load.ids) > drawn + 8, "calls asked for after that, so that the gateway has heard of it")
            proxy.loses, proxy.cuts = loses, cuts
            if silent:
                proxy.silence()
                until(lambda: mode(process, "budgets") == "lease", "lease mode")
            else:
                until(lambda: proxy.lost + proxy.cut > 5, "packets that are lost")
            during = len(load.ids)
            until(lambda: len(load.ids) > during + CALLS, "calls meanwhile")
            proxy.heal()
            until(lambda: mode(process, "budgets") == "normal", "normal mode")
            exact(process, load, site)
            cost = process.ask("GET", "/tollway/usage?by=team").json()["total"]["cost_usd"]
            until(lambda: _spent(process) == nanos(cost), "Redis to say what the ledger says")
    finally:
        server.stop()


def _leased_nanos(server: Server) -> int:
    held = "local sum = 0 for _, k in ipairs(redis.call('KEYS', '*:h:lease:*')) do sum = sum + tonumber(string.match(redis.call('GET', k), '%d+')) end return sum"
    return int(server.say("EVAL", held, "0").strip(b":\r\n"))


def _spent(process: Process) -> int | None:
    answer = process.ask("GET", "/tollway/admin/budgets")
    return sum(row["spent_nanos"] for row in answer.json()) if answer.status_code == 200 else None


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 256 MiB for PostgreSQL, where its user may go."""
    folder = Path(tempfile.mkdtemp(prefix="tollway-disk-"))
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "none", folder], capture_output=True).returncode:
        folder.rmdir()
        pytest.skip("needs the right to mount a tmpfs")
    folder.chmod(0o755)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
    folder.rmdir()


def test_the_databases_disk_is_full(run: Run, small_disk: Path, site: Site) -> None:
    """It refuses what must be written, or ends over it; the gateway spools either way, and all is there when there is room."""
    with postgres(durable=True, place=small_disk) as server:
        process = run("one", database_url=server.hasty_url)
        key = process.key()
        assert status(process, key, site) == 200
        with Load(process, key, site) as load:
            until(lambda: len(load.ids) > 20, "calls")
            fill(small_disk / "ballast")
            until(lambda: mode(process) == "spool", "spool mode")
            during = len(load.ids)
            until(lambda: len(load.ids) > during + CALLS, "calls meanwhile")
            (small_disk / "ballast").unlink()
            if server.process.poll() is not None:
                server.start()
            until(lambda: mode(process) == "normal", "normal mode")
            exact(process, load, site)
