"""The short way from the socket to the front keeps HTTP's promises: order, limits, hang-ups, whatever comes on one connection."""
from __future__ import annotations

import asyncio
import json
import socket
from types import SimpleNamespace

import pytest

from gateway.access.keys import KeyRing
from gateway.access.origins import Origin
from gateway.admission import Admission
from gateway.core.call import Tenant
from gateway.metrics import Metrics
from gateway.web import heads
from gateway.web.door import DoorProtocol
from gateway.web.front import Front, Servers
from gateway.web.heads import Visit
from gateway.web.turn import Turn
from tests.build import Gateway, chat_answer, chat_body
from tests.upstream import Gate, Site, until, whole

CHAT = "/v1/chat/completions"


def request(gateway: Gateway, site: Site, *, path: str = CHAT, version: str = "1.1", extra: str = "", **fields: object) -> bytes:
    body = json.dumps(chat_body(site.model, **fields)).encode()
    return (
        f"POST {path} HTTP/{version}\r\nHost: x\r\nAuthorization: Bearer {gateway.key()}\r\n{extra}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def connected(gateway: Gateway) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port), 10)


def answers(sock: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Whole answers in the order in which they come, each with its body."""
    file, found = sock.makefile("rb"), []
    for _ in range(count):
        status, length = int(file.readline().split()[1]), 0
        while (line := file.readline()) != b"\r\n":
            assert line, "the connection ended in the middle of a head"
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        found.append((status, file.read(length)))
    return found


def test_requests_sent_ahead_are_answered_in_order(gateway: Gateway, openai: Site) -> None:
    """Three at once on one connection, model calls and others mixed: none overtakes, none is lost."""
    openai.says(whole(chat_answer()))
    listing = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.key()}\r\n\r\n".encode()
    with connected(gateway) as sock:
        sock.sendall(request(gateway, openai) + listing + request(gateway, openai) + listing)
        found = answers(sock, 4)
    assert [status for status, _ in found] == [200] * 4
    assert ["choices" in json.loads(body) for _, body in found] == [True, False, True, False]


def test_a_connection_is_used_again(gateway: Gateway, openai: Site) -> None:
    openai.says(whole(chat_answer()))
    with connected(gateway) as sock:
        for _ in range(3):
            sock.sendall(request(gateway, openai))
            assert answers(sock, 1)[0][0] == 200


@pytest.mark.parametrize(("version", "extra"), [("1.0", ""), ("1.1", "Connection: close\r\n")])
def test_a_client_that_wants_the_end_gets_it(gateway: Gateway, openai: Site, version: str, extra: str) -> None:
    """HTTP/1.0 and `Connection: close`: the connection ends with the answer."""
    openai.says(whole(chat_answer()))
    with connected(gateway) as sock:
        sock.sendall(request(gateway, openai, version=version, extra=extra))
        everything = b"".join(iter(lambda: sock.recv(65_536), b""))
    assert everything.startswith(b"HTTP/1.1 200")
    assert b'"choices"' in everything


def test_a_body_in_pieces_is_one_body(gateway: Gateway, openai: Site) -> None:
    """Byte by byte, and after `100 Continue`."""
    openai.says(whole(chat_answer()))
    data = request(gateway, openai, extra="Expect: 100-continue\r\n")
    head, body = data.split(b"\r\n\r\n", 1)
    with connected(gateway) as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert sock.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        for at in range(len(body)):
            sock.sendall(body[at : at + 1])
        assert answers(sock, 1)[0][0] == 200
    assert openai.requests[-1].body == body


def test_a_client_that_leaves_with_half_a_body_sent_costs_nothing(gateway: Gateway, openai: Site) -> None:
    """It is counted, nothing goes out, and the next call is served."""
    openai.says(whole(chat_answer()))
    before = len(openai.requests)
    with connected(gateway) as sock:
        sock.sendall(request(gateway, openai)[:-5])
    until(lambda: 'tollway_refused_calls_total{code="client_gone"}' in gateway.http.get(gateway.url + "/metrics").text, "counted")
    assert len(openai.requests) == before
    assert gateway.chat(chat_body(openai.model)).status_code == 200


def test_a_client_that_leaves_is_heard_at_once(gateway: Gateway, openai: Site) -> None:
    """The call to the model server ends with the client's connection, though no byte of an answer had come."""
    gate = Gate()
    openai.says(whole(chat_answer(), before=[gate]))
    before = len(openai.requests)
    try:
        with connected(gateway) as sock:
            sock.sendall(request(gateway, openai))
            received = openai.wait_for(before + 1)
        assert received.hung_up.wait(60)
    finally:
        gate.open()


async def test_under_overload_a_known_head_is_answered_before_anything_is_made_of_its_call() -> None:
    """One whole 503 with `Retry-After`, the connection stays; what comes when there is time again is served."""
    visit = Visit("openai_chat", CHAT, heads.read([]), Origin("127.0.0.1"), Tenant(team="t", key_id="k"), 0, 0.0, 5)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n".encode()
    admission, metrics = Admission(), Metrics()
    front = Front(Servers(None, None, None, admission, lambda *_: False), KeyRing(b"p"), metrics, 1_000)  # type: ignore[arg-type]
    written, state = list[bytes](), SimpleNamespace(default_headers=[(b"server", b"tollway")], total_requests=0)
    door = DoorProtocol.__new__(DoorProtocol)
    door.__dict__.update(
        loop=asyncio.get_running_loop(), config=SimpleNamespace(app=SimpleNamespace(front=front)), server_state=state, pipeline=[],
        flow=SimpleNamespace(read_paused=False), timeout_keep_alive=5, timeout_keep_alive_task=None,
        transport=SimpleNamespace(write=written.append, is_closing=lambda: False), cycle=SimpleNamespace(response_complete=True),
    )  # fmt: skip
    door._known = heads.known(head + b"hello", visit, keep_alive=True)
    admission.limit = admission.in_flight = 1
    for _ in range(8):
        admission.queue("t", lambda _: None, patient=False)
    admission.sheds = True
    assert door.again(head + b"hello")
    assert door.again(head + b"again")
    assert len(written) == state.total_requests == 2
    answer, _, body = written[0].partition(b"\r\n\r\n")
    lines = answer.lower().split(b"\r\n")
    assert lines[0].startswith(b"http/1.1 503 ")
    assert {b"server: tollway", b"retry-after: 1", b"content-length: %d" % len(body)} <= set(lines)
    assert json.loads(body)["error"]["code"] == "overloaded"
    assert b'tollway_refused_calls_total{code="overloaded"} 2.0' in metrics.render()
    state.default_headers = [(b"server", b"later")]
    assert door.again(head + b"hello")
    assert b"server: later" in written[2]
    front.draining = True
    assert front.shed(visit, []) is not None
    assert not door._shed(front, door._known), "while it drains the connection has to end"
    front.draining, admission.sheds = False, False
    assert not door._shed(front, door._known)
    door._idle_timer.cancel()  # type: ignore[union-attr]


async def test_a_header_with_a_line_break_never_goes_out() -> None:
    """Whatever a backend sends, it cannot write headers of its own choosing."""

    protocol = SimpleNamespace(server_state=SimpleNamespace(default_headers=[]))
    turn = Turn(protocol, SimpleNamespace(draining=False), CHAT, keep_alive=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="line break"):
        await turn.respond(200, [(b"x-request-id", b"a\r\nset-cookie: b")], b"")
