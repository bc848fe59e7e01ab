"""The server's own bounds: a head too large, too many fields, too slow, or no HTTP at all."""
from __future__ import annotations

import contextlib
import json
import socket
import time

import pytest

from gateway.web import guard
from tests.build import Gateway, chat_answer, chat_body
from tests.upstream import PATIENCE_S, Site, whole


def say(gateway: Gateway, data: bytes, timeout_s: float = PATIENCE_S) -> tuple[int | None, bytes]:
    """Status and body of what comes back until the gateway closes."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout_s) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(data)
        got = b""
        with contextlib.suppress(ConnectionError):
            while more := sock.recv(65536):
                got += more
    head, _, body = got.partition(b"\r\n\r\n")
    return (int(head.split(b" ")[1]) if head else None), body


@pytest.mark.parametrize(("data", "status", "code"), [
    pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431, "headers_too_large", id="one large field"),
    pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000, 431, "headers_too_large", id="one large field without end"),
    pytest.param(b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431, "headers_too_large", id="a long path"),
    pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 101 + b"\r\n", 431, "headers_too_large", id="many fields"),
    pytest.param(b"hello\r\n\r\n", 400, "invalid_http", id="no HTTP"),
    pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid_http", id="TLS"),
    pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: a\nB: b\r\n\r\n", 400, "invalid_http", id="a bare line feed"),
    pytest.param(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400, "invalid_http", id="two lengths"),
    pytest.param(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_http", id="two framings"),
    pytest.param(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, "invalid_http", id="another coding"),
    pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", 400, "invalid_http", id="no host"),
    pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, "invalid_http", id="two hosts"),
    pytest.param(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n", 400, "invalid_http", id="two keys"),
    pytest.param(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: a\r\nX-Api-Key: b\r\n\r\n", 400, "invalid_http", id="two keys of a provider's kind"),
    pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x/y\r\n\r\n", 400, "invalid_http", id="a path for a host"),
    pytest.param(b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n", 400, "invalid_http", id="an empty host"),
    pytest.param(b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed", id="a proxy's method"),
    pytest.param(
        b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n{}", 426,
        "upgrade_refused", id="a WebSocket by POST",
    ),
])  # fmt: skip
def test_what_is_no_request_is_refused_and_closed(gateway: Gateway, data: bytes, status: int, code: str) -> None:
    """In JSON, with a code, and nothing more is read."""
    got, body = say(gateway, data)
    assert got == status
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert gateway.http.get(gateway.url + "/healthz").status_code == 200


def test_one_key_twice_is_one_key(gateway: Gateway) -> None:
    """As proxies send it that add a header which is there already."""
    shown = f"Authorization: Bearer {gateway.key()}\r\n" * 2
    assert say(gateway, f"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{shown}\r\n".encode())[0] == 200


@pytest.mark.parametrize("between", [b"1;" + b"a" * 1_000_000 + b"\r\n{\r\n", b"0\r\nx: " + b"a" * 1_000_000], ids=["a chunk extension", "a trailer"])
def test_what_stands_between_chunks_has_an_end(gateway: Gateway, between: bytes) -> None:
    """Refused while it comes. The call has a key: without one it is answered by its head alone, and what follows is not looked at."""
    head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + gateway.key().encode()
    got, body = say(gateway, head + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + between)
    assert (got, json.loads(body)["error"]["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize("data", [b"", b"GET /healthz HT"], ids=["nothing", "half a line"])
def test_who_says_too_little_is_not_waited_for(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Ten seconds for the whole head; here it is less, or we should not wait so long."""
    monkeypatch.setattr(guard, "HEAD_S", 0.3)
    assert say(gateway, data)[0] == 408


def test_bounds_start_anew_with_each_request(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection kept alive may have any number of requests, and rests between them are keep-alive's business."""
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 9) as sock:
        ours = sock.getsockname()[1]
        for _ in range(4):
            sock.sendall(request)
            got = b""
            while b'"ok"}' not in got:
                more = sock.recv(65536)
                assert more, got
                got += more
            assert got.startswith(b"HTTP/1.1 200")
            (connection,) = [each for each in list(gateway._server.server_state.connections) if each.client[1] == ours]
            assert connection._timer is None, "no head is waited for between two requests"
        monkeypatch.setattr(guard, "HEAD_S", 0.05)
        sock.sendall(b"GET /healthz")
        assert sock.recv(100).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("host", [b"example.com", b"example.com:4000", b"my_service:80", b"[::1]:4000", b"127.0.0.1", b"xn--bcher-kva.example"])
def test_names_of_hosts_are_taken(gateway: Gateway, host: bytes) -> None:
    """As balancers, containers and people write them; HTTP/1.0 needs none."""
    assert say(gateway, b"GET /healthz HTTP/1.1\r\nConnection: close\r\nHost: " + host + b"\r\n\r\n")[0] == 200
    assert say(gateway, b"GET /healthz HTTP/1.0\r\n\r\n")[0] == 200


def test_a_trailer_is_no_header(gateway: Gateway) -> None:
    """What stands behind the body has passed no proxy's rules: a key there opens nothing."""
    data = b"POST /tollway/admin/keys HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nContent-Type: application/json\r\n\r\n"
    body = b'{"team": "plain"}'
    trailer = b"Authorization: Bearer " + gateway.admin_key.encode() + b"\r\n\r\n"
    assert say(gateway, data + b"%x\r\n%b\r\n0\r\n" % (len(body), body) + trailer)[0] == 401


@pytest.mark.parametrize("cut", [0, 40, 200])
def test_the_wish_for_http2_is_passed_over(gateway: Gateway, openai: Site, cut: int) -> None:
    """As Java's client has it on plain connections: answered in HTTP/1.1, twice on one connection, however it comes in."""
    openai.says(whole(chat_answer()))
    body = json.dumps(chat_body(openai.model)).encode()
    wish = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{wish}\r\nAuthorization: Bearer {gateway.key()}\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    with socket.create_connection(("127.0.0.1", gateway.port), 5) as sock:
        for _ in range(2):
            sock.sendall(request[:cut])
            time.sleep(0.05 if cut else 0)
            sock.sendall(request[cut:])
            got = b""
            while b"Hello there." not in got:
                more = sock.recv(65536)
                assert more, got
                got += more
            assert got.startswith(b"HTTP/1.1 200")
