"""Replicas that share a PostgreSQL: what one changes the others know, and what they do while it is away."""
from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.build import PLAIN, NotStarted, Process, backend, chat_answer, chat_body, free_port
from tests.ledger.postgres import Postgres, binaries
from tests.upstream import PATIENCE_S, Site, Upstream, until, whole

ENV = {"PEPPER": "a pepper that replicas share"}


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    bin_dir = binaries()
    if bin_dir is None:
        pytest.skip("no PostgreSQL: install the test extra")
    server = Postgres(bin_dir, durable=True)
    yield server
    server.stop()


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A server that is quick and careless."""
    bin_dir = binaries()
    assert bin_dir is not None
    server = Postgres(bin_dir)
    yield server.url
    server.stop()


@pytest.fixture
def site(upstream: Upstream, tmp_path: Path) -> Site:
    site = upstream.site(tmp_path.name)
    site.says(whole(chat_answer()))
    return site


@pytest.fixture
def start(tmp_path: Path, site: Site, postgres: Postgres) -> Iterator[Callable[..., Process]]:
    """Starts a replica with a folder of its own."""
    with contextlib.ExitStack() as stack:

        def begin(name: str, workers: int = 1, url: str = postgres.url) -> Process:
            config = {"backends": {"b": backend(site)}, "database_url": url, "key_pepper": "env:PEPPER"}
            folder = tmp_path / name
            folder.mkdir()
            return stack.enter_context(Process(folder, config, {"plain": PLAIN}, env=ENV, workers=workers))

        yield begin


def status(replica: Process, key: str, site: Site) -> int:
    return replica.ask("POST", "/v1/chat/completions", key, json=chat_body(site.model)).status_code


def test_a_revocation_reaches_every_replica_in_five_seconds(start: Callable[[str], Process], site: Site) -> None:
    """C23: new keys, revoked keys and changed ones, also while the replica is busy with the key."""
    one, two = start("one"), start("two")

    def reaches_s() -> float:
        """How long a revocation takes; a machine that stands still is no measure, so the best of several counts."""
        made = one.make_key("plain")
        until(lambda: status(two, made["key"], site) == 200, "the new key at the other replica")
        one.ask("DELETE", f"/tollway/admin/keys/{made['id']}")
        revoked = time.monotonic()
        assert status(one, made["key"], site) == 401
        until(lambda: status(two, made["key"], site) == 401, "the revocation at the other replica")
        return time.monotonic() - revoked

    assert any(reaches_s() < 5 for _ in range(5))
    assert two.ask("GET", "/tollway/me", one.admin_key).json()["role"] == "admin"


class Load:
    """Clients that call all the time; what they got."""

    def __init__(self, process: Process, key: str, site: Site, clients: int = 4, **fields: Any) -> None:
        self.statuses: list[int] = []
        self.ids: list[str] = []
        self.refused: list[str] = []
        """What was said with a status that is not 200."""
        self._stop = threading.Event()
        self._call = {"url": process.url + "/v1/chat/completions", "headers": {"authorization": f"Bearer {key}"}, "json": chat_body(site.model, **fields)}
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        with httpx.Client(verify=False, trust_env=False, timeout=PATIENCE_S) as client:
            while not self._stop.wait(0.02):
                answer = client.post(**self._call)  # type: ignore[arg-type]
                self.statuses.append(answer.status_code)
                if answer.status_code != 200:
                    self.refused.append(answer.text)
                self.ids.append(answer.headers.get("x-tollway-call", ""))

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def booked(process: Process, site: Site) -> dict[str, Any]:
    rows = process.ask("GET", f"/tollway/usage?by=call_id&model={site.model}").json().get("rows", ())
    return {row["call_id"]: row["attempts"] for row in rows}


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_calls_go_on_while_the_database_is_away(start: Callable[[str], Process], site: Site, postgres: Postgres, how: str) -> None:
    """C6, short: no call with a key seen lately fails, /readyz says `spool`, nothing can be changed meanwhile; when the database is
    back, every call is in it, once."""
    process = start(how, url=postgres.hasty_url)
    key = process.key()
    assert status(process, key, site) == 200
    load = Load(process, key, site)
    until(lambda: len(load.ids) > 20, "calls")
    assert "as_of" not in process.ask("GET", "/tollway/usage?by=model").json()
    postgres.kill() if how == "kill" else postgres.freeze()
    try:
        until(lambda: process.http.get(process.url + "/readyz").json()["mode"] == "spool", "spool mode")
        ready = process.http.get(process.url + "/readyz")
        assert ready.status_code == 200
        refused = process.ask("POST", "/tollway/admin/keys", json={"team": "plain"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_unavailable")
        assert process.ask("GET", "/tollway/usage?by=key").status_code == 503  # never asked before
        report = process.ask("GET", "/tollway/usage?by=model").json()
        assert report["as_of"]
        assert report["total"]["calls"] >= 1
        during = len(load.ids)
        until(lambda: len(load.ids) > during + 100, "calls while it is away")
    finally:
        postgres.start() if how == "kill" else postgres.thaw()
    until(lambda: process.http.get(process.url + "/readyz").json()["mode"] == "normal", "normal mode")
    load.stop()
    assert set(load.statuses) == {200}
    until(lambda: len(booked(process, site)) >= len(load.ids) + 1, "all calls in the database")
    found = booked(process, site)
    assert set(load.ids) <= set(found)
    assert set(found.values()) == {1}
    assert "Traceback" not in process.text()


def test_readyz_names_a_server_that_may_forget(tmp_path: Path, site: Site, postgres_url: str) -> None:
    """PostgreSQL with synchronous_commit=off, as a careless operator's: it serves, and says what is at risk."""
    config = {"backends": {"b": backend(site)}, "database_url": postgres_url}
    with Process(tmp_path, config, {"plain": PLAIN}) as process:
        until(lambda: "synchronous_commit off" in process.http.get(process.url + "/readyz").text, "the note")


@pytest.mark.parametrize("workers", [1, 2])
def test_it_starts_while_the_database_is_away(start: Callable[..., Process], site: Site, postgres: Postgres, workers: int) -> None:
    """With the keys that were used lately; what is answered meanwhile is booked when the database is back."""
    process = start(f"start-{workers}", workers)
    key, idle = process.key(), process.make_key("plain")["key"]
    assert status(process, key, site) == 200
    known = process.folder / "data" / "keys" / "known.json"
    until(lambda: known.exists() and key.split("_")[1] in known.read_text(), "the key to be remembered", 2 * PATIENCE_S)
    postgres.kill()
    try:
        process.kill()
        process.start()
        ready = process.http.get(process.url + "/readyz").json()
        assert (ready["status"], ready["mode"]) == ("ready", "spool")
        answer = process.ask("POST", "/v1/chat/completions", key, json=chat_body(site.model))
        assert answer.status_code == 200
        unknown = process.ask("POST", "/v1/chat/completions", idle, json=chat_body(site.model))
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "key_store_unavailable")
    finally:
        postgres.start()
    until(lambda: process.http.get(process.url + "/readyz").json()["mode"] == "normal", "normal mode")
    until(lambda: answer.headers["x-tollway-call"] in booked(process, site), "the call in the database")
    assert status(process, idle, site) == 200
    assert "Traceback" not in process.text()


def test_it_does_not_start_where_nothing_is_remembered(tmp_path: Path, site: Site) -> None:
    """A first start against a database that is not there is a mistake, and is told."""
    config = {"backends": {"b": backend(site)}, "database_url": f"postgresql://gw@127.0.0.1:{free_port()}/postgres"}
    with pytest.raises(NotStarted, match="database"):
        Process(tmp_path, config, {"plain": PLAIN})
