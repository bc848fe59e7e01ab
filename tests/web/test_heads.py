"""A head that came before is not parsed again, and nobody can tell: same answers, same refusals, whatever the packets."""
from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.origins import Origin
from gateway.core.call import Tenant
from gateway.web import heads
from gateway.web.heads import Visit
from tests.build import Gateway, chat_answer, chat_body
from tests.upstream import Site, whole
from tests.web.test_door import CHAT, answers, connected, request

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\nAccept: */*\r\n\r\n"


def known(head: bytes = HEAD % b"5", body: bytes = b"hello") -> heads.Known | None:
    visit = Visit("openai_chat", CHAT, heads.read([]), Origin("127.0.0.1"), Tenant(team="t", key_id="k"), 0, 0.0, len(body))
    return heads.known(head + body, visit, keep_alive=True)


@given(st.integers(0, 999_999_999), st.binary(max_size=40))
def test_the_same_head_frames_any_body(length: int, body: bytes) -> None:
    """Where the body begins, and how long it says it is."""
    found = known()
    assert found is not None
    head = HEAD % str(length).encode()
    assert found.framed(head + body) == (len(head), length)


@pytest.mark.parametrize("packet", [
    pytest.param(HEAD % b"-5", id="sign"), pytest.param(HEAD % b"", id="no digits"), pytest.param(HEAD % b"5 ", id="space behind"),
    pytest.param(HEAD % b"5,5", id="two"), pytest.param(HEAD % b"0x5", id="hex"), pytest.param(HEAD % b"1234567890", id="too many digits"),
    pytest.param(HEAD % b"5\r\nTransfer-Encoding: chunked", id="another framing"), pytest.param(HEAD % b"5\r\nX-New: 1", id="one more field"),
    pytest.param((HEAD % b"5")[:-2], id="half a head"), pytest.param((HEAD % b"5").replace(b"Host: x", b"Host: y"), id="another host"),
    pytest.param((HEAD % b"5").replace(b"POST", b"PUT "), id="another method"), pytest.param(b"", id="nothing"),
])  # fmt: skip
def test_any_other_head_is_left_to_the_parser(packet: bytes) -> None:
    found = known()
    assert found is not None
    assert found.framed(packet) is None


@pytest.mark.parametrize("field", [
    b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"Upgrade: websocket", b"content-length: 5",
])  # fmt: skip
def test_what_changes_the_framing_is_not_remembered(field: bytes) -> None:
    assert known((HEAD % b"5").replace(b"Accept: */*", field)) is None


def test_a_head_of_any_connection_is_known_until_others_came() -> None:
    """Those that were asked for last stay; an endless one is not kept."""
    one, two, three = (known((HEAD % b"5").replace(b"Host: x", b"Host: %d" % n)) for n in range(3))
    long = known((HEAD % b"5").replace(b"Host: x", b"Host: " + b"x" * 5_000))
    assert one is not None
    assert two is not None
    assert three is not None
    assert long is not None
    kept = heads.Heads(most=2)
    for each in (one, two):
        kept.keep(each)
    assert kept.find((HEAD % b"77").replace(b"Host: x", b"Host: 0") + b"body") is one
    kept.keep(long)
    kept.keep(three)
    assert [kept.find(each.before + b"1" + each.after) for each in (one, two, three, long)] == [one, None, three, None]
    assert kept.find(b"POST / HTTP/1.1\r\nHost: 0\r\n\r\n") is None
    assert kept.find((HEAD % b"5")[:-2]) is None


def test_heads_that_take_turns_on_a_connection_are_told_apart(gateway: Gateway, openai: Site) -> None:
    """As behind a proxy: each call is its own caller's, also on a second connection, and a wrong key stays a wrong key."""
    openai.says(whole(chat_answer()))
    one, two = (request(gateway, openai, extra=f"x-tollway-class: {name}\r\n") for name in ("batch", "interactive"))
    wrong = one.replace(gateway.key().encode(), b"tw_wrong")
    for _ in range(2):
        with connected(gateway) as sock:
            seen = []
            for data in (one, two, one, wrong, two, one):
                sock.sendall(data)
                seen.append(answers(sock, 1)[0][0])
                if seen[-1] == 401:
                    break
            assert seen == [200, 200, 200, 401]
    classes = [call["class"] for call in gateway.booked(openai)]
    assert sorted(classes) == ["batch"] * 4 + ["interactive"] * 2


def test_calls_of_one_connection_are_told_apart(gateway: Gateway, openai: Site) -> None:
    """Bodies of other lengths, in one packet, in pieces, and behind their head."""
    openai.says(whole(chat_answer()))
    with connected(gateway) as sock:
        for n, cuts in enumerate([(), (), (0,), (1, 40), (-1,), ()]):
            data = request(gateway, openai, user="x" * n)
            at = data.index(b"\r\n\r\n") + 4
            places = [0, *[at + cut if cut >= 0 else len(data) + cut for cut in cuts], len(data)]
            for start, end in pairwise(places):
                sock.sendall(data[start:end])
                time.sleep(0.02 if cuts else 0)
            assert answers(sock, 1)[0][0] == 200
            assert openai.requests[-1].body == data[at:]


def test_requests_sent_ahead_behind_a_known_head(gateway: Gateway, openai: Site) -> None:
    """Two in one packet, and two of which the second comes with the end of the first."""
    openai.says(whole(chat_answer()))
    with connected(gateway) as sock:
        one = request(gateway, openai)
        sock.sendall(one)
        assert answers(sock, 1)[0][0] == 200
        sock.sendall(one + one)
        assert [status for status, _ in answers(sock, 2)] == [200, 200]
        sock.sendall(one[:-10])
        time.sleep(0.05)
        sock.sendall(one[-10:] + one)
        assert [status for status, _ in answers(sock, 2)] == [200, 200]


def test_a_known_head_does_not_make_a_bad_request_good(gateway: Gateway, openai: Site) -> None:
    """A body that is no JSON, one without bytes, one that is too long, a key that is wrong; and then a good one again."""
    openai.says(whole(chat_answer()))
    good = request(gateway, openai)
    head, body = good.split(b"\r\n\r\n", 1)

    def sized(size: int, rest: bytes) -> bytes:
        return head.replace(b"Content-Length: %d" % len(body), b"Content-Length: %d" % size) + b"\r\n\r\n" + rest

    with connected(gateway) as sock:
        for data, status in ((good, 200), (sized(3, b"[1]"), 400), (sized(0, b""), 400), (good, 200)):
            sock.sendall(data)
            assert answers(sock, 1)[0][0] == status
        sock.sendall(sized(999_999_999, b""))
        assert answers(sock, 1)[0][0] == 413
    with connected(gateway) as sock:
        sock.sendall(good)
        assert answers(sock, 1)[0][0] == 200
        sock.sendall(good.replace(gateway.key().encode(), gateway.key("other").encode()[:-1] + b"!"))
        assert answers(sock, 1)[0][0] == 401


def test_a_key_is_asked_for_each_time(gateway: Gateway, openai: Site) -> None:
    """Revoked between two calls of one connection: the second is refused."""
    openai.says(whole(chat_answer()))
    made = gateway.make_key("plain", name="short-lived")
    data = request(gateway, openai).replace(gateway.key().encode(), made["key"].encode())
    with connected(gateway) as sock:
        for _ in range(2):
            sock.sendall(data)
            assert answers(sock, 1)[0][0] == 200
        assert gateway.ask("DELETE", f"/tollway/admin/keys/{made['id']}").status_code == 200
        sock.sendall(data)
        status, body = answers(sock, 1)[0]
    assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")


def test_a_client_that_leaves_within_a_body(gateway: Gateway, openai: Site) -> None:
    """Nothing goes out, and the next call is served."""
    openai.says(whole(chat_answer()))
    with connected(gateway) as sock:
        data = request(gateway, openai)
        sock.sendall(data)
        assert answers(sock, 1)[0][0] == 200
        before = len(openai.requests)
        sock.sendall(data[:-5])
    assert gateway.chat(chat_body(openai.model)).status_code == 200
    assert len(openai.requests) == before + 1


def test_a_connection_rests_as_long_as_it_may_after_whatever_came_last(gateway: Gateway, openai: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model call, then another path: the time of keep-alive counts from the later."""
    openai.says(whole(chat_answer()))
    listing = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.key()}\r\n\r\n".encode()
    monkeypatch.setattr(gateway._server.config, "timeout_keep_alive", 2.0)
    for _ in range(5):
        with connected(gateway) as sock:
            gaps, asked_at = [], time.monotonic()
            for data, rest_s in ((request(gateway, openai), 1.4), (listing, 1.2), (request(gateway, openai), 0.0)):
                gaps.append(time.monotonic() - asked_at)  # no shorter than the gateway saw it rest
                asked_at = time.monotonic()
                try:
                    sock.sendall(data)
                    assert answers(sock, 1)[0][0] == 200
                except (OSError, IndexError):
                    assert max(gaps) > 1.9, f"closed after rests of {gaps} s"
                    break
                time.sleep(rest_s)
            else:
                assert sock.recv(1) == b""  # and then it ends
                assert time.monotonic() - asked_at > 1.9
                return
    pytest.fail("this machine is too slow to ask twice in two seconds")
