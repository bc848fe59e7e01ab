"""The gateway behind a real nginx: streams come piece by piece, hang-ups reach the backend, clients keep their addresses, and a
replica that is killed takes no other call with it."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx
import pytest

from gateway.access.keys import mint
from tests import nginx
from tests.build import PLAIN, Process, backend, chat_answer, chat_body, chat_stream
from tests.upstream import PATIENCE_S, Gate, Site, Upstream, stream, until, whole

ADMIN = mint()[1].reveal()
HEADERS = {"authorization": f"Bearer {ADMIN}"}
pytestmark = pytest.mark.skipif(nginx.binary() is None, reason="no nginx on this machine")


@pytest.fixture(scope="module")
def site(upstream: Upstream) -> Site:
    return upstream.site("nginx")


@pytest.fixture(scope="module")
def replicas(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    """Two, with one key that both know: they share a pepper and the key file, not a database."""
    with contextlib.ExitStack() as stack:
        config = {"backends": {"b": backend(site)}, "proxies": ["127.0.0.1"], "key_pepper": "env:PEPPER", "admin_key": "env:ADMIN"}
        env = {"PEPPER": "a pepper that replicas share", "ADMIN": ADMIN}
        yield [stack.enter_context(Process(tmp_path_factory.mktemp(name), config, {"plain": PLAIN}, env=env)) for name in "ab"]


@pytest.fixture
def front(replicas: list[Process]) -> Iterator[nginx.Nginx]:
    running = nginx.Nginx([replica.port for replica in replicas])
    yield running
    running.close()


def ask(front: nginx.Nginx, site: Site, source: str = "127.0.0.1", key: str = ADMIN) -> int:
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source, verify=False), trust_env=False, timeout=PATIENCE_S) as client:
        answer = client.post(f"{front.url}/v1/chat/completions", json=chat_body(site.model), headers={"authorization": f"Bearer {key}"})
    return answer.status_code


def calls(replica: Process) -> int:
    return int(replica.ask("GET", "/tollway/usage?by=model", ADMIN).json()["total"]["calls"])


def test_a_stream_comes_piece_by_piece_and_a_hang_up_goes_through(front: nginx.Nginx, site: Site) -> None:
    gate, words = Gate(), chat_stream()
    site.says(stream(*words[:2], gate, *words[2:]))
    before = len(site.requests)
    with httpx.Client(trust_env=False, verify=False, timeout=PATIENCE_S) as client:
        body = chat_body(site.model, stream=True)
        with client.stream("POST", f"{front.url}/v1/chat/completions", json=body, headers=HEADERS) as answer:
            assert next(answer.iter_bytes())  # the backend has not said the rest yet
            request = site.wait_for(before + 1)
    assert request.hung_up.wait(PATIENCE_S)
    gate.open()


def test_keys_bound_to_networks_see_the_client_and_not_nginx(front: nginx.Nginx, replicas: list[Process], site: Site) -> None:
    site.says(whole(chat_answer()))
    made = replicas[0].ask("POST", "/tollway/admin/keys", ADMIN, json={"team": "plain", "limits": {"addresses": ["127.0.0.2"]}}).json()
    front.ports = [replicas[0].port]

    def asked() -> list[int]:       # a process of nginx from before may still ask the other replica, which hears of the key a little later
        return [ask(front, site, f"127.0.0.{n}", made["key"]) for n in (2, 1, 9, 2)]

    until(lambda: asked() == [200, 401, 401, 200], "the key to be known")


def test_a_killed_replica_takes_no_new_call_with_it(front: nginx.Nginx, replicas: list[Process], site: Site) -> None:
    """nginx finds its door shut and goes to the other; started again, on another port here, it takes its share."""
    site.says(whole(chat_answer()))
    assert {ask(front, site) for _ in range(8)} == {200}
    seen = calls(replicas[1])
    assert seen > 0
    replicas[1].kill()
    assert {ask(front, site) for _ in range(20)} == {200}
    replicas[1].start()
    front.ports = [replica.port for replica in replicas]
    until(lambda: ask(front, site) == 200 and calls(replicas[1]) > seen, "the replica to have calls again")
