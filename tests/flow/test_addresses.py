"""T1: a key that may be used from some networks only, at every road into the gateway, behind proxies and without."""
from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.build import PLAIN, Gateway, backend, chat_answer, chat_body, command
from tests.upstream import Site, Upstream, whole
from tests.web.test_door import answers, request

OFFICE, ELSEWHERE, PROXY = "127.0.0.2", "127.0.0.9", "127.0.0.3"


@pytest.fixture(scope="module")
def site(upstream: Upstream) -> Site:
    site = upstream.site("addresses")
    site.says(whole(chat_answer()))
    return site


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory, site: Site) -> Iterator[Gateway]:
    config = {"backends": {"b": backend(site, speaks=["chat", "files"])}, "proxies": [PROXY]}
    with Gateway(tmp_path_factory.mktemp("addresses"), config, {"plain": PLAIN}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def key(gate: Gateway) -> str:
    made = gate.make_key("plain", role="lead", limits={"addresses": ["127.0.0.2/32", "203.0.113.0/24"]})
    return str(made["key"])


def status(gate: Gateway, key: str, source: str, road: tuple[str, str], site: Site, headers: Mapping[str, str] | None = None) -> int:
    method, path = road
    with httpx.Client(transport=httpx.HTTPTransport(local_address=source, verify=False), trust_env=False) as client:
        body = {"json": chat_body(site.model)} if method == "POST" else {}
        sent = {"authorization": f"Bearer {key}", **(headers or {})}
        answer = client.request(method, gate.url + path, headers=sent, **body)  # type: ignore[arg-type]
    if answer.status_code == 401:
        assert answer.json()["error"]["code"] == "address_not_allowed"
    return answer.status_code


ROADS = [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/tollway/usage"), ("GET", "/tollway/admin/keys"), ("GET", "/v1/files")]


@pytest.mark.parametrize("road", ROADS)
def test_every_road_asks_from_where(gate: Gateway, key: str, site: Site, road: tuple[str, str]) -> None:
    """Nothing that a client says of itself helps; what a proxy says does."""
    elsewhere = {"x-forwarded-for": OFFICE, "forwarded": f"for={OFFICE}", "x-real-ip": OFFICE}
    assert status(gate, key, OFFICE, road, site) == 200
    assert status(gate, key, ELSEWHERE, road, site) == 401
    assert status(gate, key, ELSEWHERE, road, site, elsewhere) == 401
    assert status(gate, key, PROXY, road, site, {"x-forwarded-for": "203.0.113.9"}) == 200
    assert status(gate, key, PROXY, road, site, {"x-forwarded-for": f"203.0.113.9, {ELSEWHERE}"}) == 401
    assert status(gate, key, PROXY, road, site) == 401


@pytest.mark.parametrize(("lines", "expected"), [
    pytest.param([OFFICE, ELSEWHERE], 401, id="the nearest proxy's line is the last"),
    pytest.param([ELSEWHERE, OFFICE], 200, id="that one counts"),
    pytest.param([OFFICE, PROXY], 200, id="two proxies, a line each"),
    pytest.param([ELSEWHERE, PROXY], 401, id="and the client elsewhere"),
])  # fmt: skip
def test_several_lines_are_one_list(gate: Gateway, key: str, site: Site, lines: list[str], expected: int) -> None:
    """On the short road too, with a head that is read and one that came before."""
    extra = "".join(f"X-Forwarded-For: {line}\r\n" for line in lines)
    data = request(gate, site, extra=extra).replace(gate.key().encode(), key.encode())
    with socket.create_connection(("127.0.0.1", gate.port), 10, source_address=(PROXY, 0)) as sock:
        for _ in range(2 if expected == 200 else 1):
            sock.sendall(data)
            assert answers(sock, 1)[0][0] == expected


def test_what_is_narrowed_takes_effect_on_connections_that_are_open(gate: Gateway, site: Site) -> None:
    """And is told in the log; a change of the models leaves the addresses as they are."""
    made = gate.make_key("plain")
    data = request(gate, site).replace(gate.key().encode(), made["key"].encode())
    with socket.create_connection(("127.0.0.1", gate.port), 10, source_address=(ELSEWHERE, 0)) as sock:
        sock.sendall(data)
        assert answers(sock, 1)[0][0] == 200
        limits = {"addresses": ["127.0.0.2"]}
        assert gate.ask("PATCH", f"/tollway/admin/keys/{made['id']}", json={"limits": limits}).json()["limits"]["addresses"] == ["127.0.0.2/32"]
        kept = gate.ask("PATCH", f"/tollway/admin/keys/{made['id']}", json={"limits": {"models": ["m-*"]}}).json()["limits"]
        assert kept == {"addresses": ["127.0.0.2/32"], "models": ["m-*"]}
        sock.sendall(data)
        refused, body = answers(sock, 1)[0]
    assert refused == 401
    assert json.loads(body)["error"]["code"] == "address_not_allowed"


def test_a_key_in_a_wrong_place_is_told_once_a_minute(gate: Gateway, key: str, site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Its id and the address, never the key."""
    gate.asgi.services.keys._told_s.clear()  # type: ignore[union-attr]
    with caplog.at_level(logging.WARNING, "tollway.keys"):
        for _ in range(3):
            assert status(gate, key, ELSEWHERE, ROADS[0], site) == 401
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tollway.keys"]
    assert ELSEWHERE in line
    assert key.split("_")[1] in line
    assert key not in line


@pytest.mark.parametrize("wrong", ["10.0.0.1/8", "10.0.0.0/33", "office", "", "10.0.0.0/8 "])
def test_what_is_no_network_is_refused(gate: Gateway, wrong: str) -> None:
    answer = gate.ask("POST", "/tollway/admin/keys", json={"team": "plain", "limits": {"addresses": [wrong]}})
    assert answer.status_code == 400
    assert "addresses" in answer.text


def test_the_command_names_networks(gate: Gateway, tmp_path: Path) -> None:
    env = {"TOLLWAY_URL": gate.url, "TOLLWAY_KEY": gate.admin_key}
    exit_code, said = command("keys", "create", "--team", "plain", "--addresses", "10.0.0.0/8, 192.0.2.7", "--json", env=env)
    assert exit_code == 0, said
    assert json.loads(said)["limits"]["addresses"] == ["10.0.0.0/8", "192.0.2.7/32"]
