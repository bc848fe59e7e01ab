"""Leaving without a call lost: not ready first, then closed, open streams to their end."""
from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.build import PLAIN, Process, backend, chat_answer, chat_body, chat_stream
from tests.upstream import PATIENCE_S, Gate, Pause, Site, Upstream, stream, until, whole


@pytest.fixture
def site(upstream: Upstream, tmp_path: Path) -> Site:
    return upstream.site(tmp_path.name)


@pytest.fixture
def start(tmp_path: Path, site: Site) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def begin(name: str = "", workers: int = 1, **fields: Any) -> Process:
            config = {"backends": {"b": backend(site)}, **fields}
            return stack.enter_context(Process(tmp_path / name, config, {"plain": PLAIN}, workers=workers))

        yield begin


@pytest.mark.parametrize(("workers", "by"), [(1, "signal"), (1, "request"), (2, "request")])
def test_it_says_that_it_leaves_before_it_does(start: Any, site: Site, workers: int, by: str) -> None:
    """`/readyz` turns while calls are still taken, each on its last connection; then the door closes and the open stream goes
    on. (How soon it turns is C11's to measure; a second signal ends the wait.)"""
    process, gate = start(unready_s=50, workers=workers), Gate()
    site.says(stream(*chat_stream()[:3], gate, *chat_stream()[3:]))
    headers = {"authorization": f"Bearer {process.key()}"}
    url, got = process.url + "/v1/chat/completions", []
    body = chat_body(site.model, stream=True, stream_options={"include_usage": True})
    open_stream = threading.Thread(target=lambda: got.append(process.http.post(url, json=body, headers=headers).content))
    open_stream.start()
    until(lambda: len(site.requests) == 1 and site.requests[0].steps_sent == 3, "the stream to be open")
    site.says(whole(chat_answer()))
    if by == "signal":
        process.terminate()
    else:
        assert process.ask("POST", "/tollway/admin/drain", process.key()).status_code == 403
        assert process.ask("POST", "/tollway/admin/drain").status_code == 202
    with httpx.Client(trust_env=False, verify=False) as other:
        until(lambda: other.get(process.url + "/readyz").status_code == 503, "not to be ready")
        assert other.get(process.url + "/healthz").status_code == 200
        answer = other.post(url, json=chat_body(site.model), headers=headers)
        assert answer.status_code == 200
        assert answer.headers["connection"] == "close"
    process.terminate()
    until(lambda: not _listens(process), "the door to close")
    assert open_stream.is_alive()
    gate.open()
    open_stream.join(PATIENCE_S)
    assert got == [b"".join(chat_stream())]
    assert process.wait() == 0


def test_the_door_stays_open_for_its_time(start: Any) -> None:
    """And closes by itself then."""
    process = start(unready_s=1.0)
    asked = time.monotonic()
    process.terminate()
    until(lambda: not _listens(process), "the door to close")
    assert time.monotonic() - asked > 0.95
    assert process.wait() == 0


def _listens(process: Process) -> bool:
    try:
        socket.create_connection(("127.0.0.1", process.port), PATIENCE_S).close()
    except OSError:
        return False
    return True


class Balancer:
    """Sends each connection to a replica whose `/readyz` said yes a tenth of a second ago: as balancers do, in small."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self._ready = list(ports)
        self._sent: dict[int, int] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._look_once()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def pick(self) -> int:
        """Where the calling thread's next call goes."""
        with self._lock:
            self._next += 1
            port = self._sent[threading.get_ident()] = self._ready[self._next % len(self._ready)]
        return port

    def sends_to(self, port: int) -> bool:
        """Calls that are under way are counted in."""
        with self._lock:
            return port in self._ready or port in self._sent.values()

    def close(self) -> None:
        self._over.set()
        self._looking.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            self._look_once()

    def _look_once(self) -> None:
        ready = [port for port in self.ports if self._is_ready(port)]
        with self._lock:
            self._ready = ready or self._ready

    def _is_ready(self, port: int) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_S, trust_env=False, verify=False).status_code == 200
        return False


def test_a_rolling_restart_fails_no_call(start: Any, site: Site) -> None:
    """Three replicas behind a balancer, one after the other restarted under load: every call is answered whole."""
    replicas = [start(name, unready_s=50) for name in "abc"]
    site.says(stream(*chat_stream()[:3], Pause(0.05), *chat_stream()[3:]))
    keys = {replica.port: replica.key() for replica in replicas}
    balancer, over = Balancer([replica.port for replica in replicas]), threading.Event()
    good, bad = list[int](), list[str]()

    def load() -> None:
        while not over.is_set():
            port = balancer.pick()
            try:
                with httpx.Client(trust_env=False, verify=False, timeout=PATIENCE_S) as client:
                    answer = client.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=chat_body(site.model, stream=True),
                                         headers={"authorization": f"Bearer {keys[port]}"})  # fmt: skip
                whole_one = answer.status_code == 200 and answer.content.endswith(b"[DONE]\n\n")
                good.append(port) if whole_one else bad.append(f"{answer.status_code} {answer.content[-100:]!r}")
            except httpx.HTTPError as error:
                bad.append(repr(error))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for replica in replicas:
        seen = len(good)
        until(lambda seen=seen: len(good) > seen + 12, "calls to be answered")
        old = replica.port
        replica.terminate()
        until(lambda port=old: not balancer.sends_to(port), "the balancer to send elsewhere")
        replica.terminate()                     # no need to wait any longer: however slow this machine is, it has been noticed
        assert replica.wait() == 0
        replica.start()
        keys[replica.port] = keys[old]
        balancer.ports = [each.port for each in replicas]
        until(lambda port=replica.port: port in balancer._ready, "the replica to be back")
    over.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    balancer.close()
    assert bad == []
    assert len(good) > 36
