"""How often and how long backends are asked: deadlines, retry budgets, breakers."""
from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.build import PLAIN, Gateway, backend, chat_answer, chat_body, chat_stream
from tests.upstream import HANG, PATIENCE_S, RESET, End, Gate, Pause, Site, Upstream, raw, stream, until, whole

BUSY = {"error": {"message": "x", "type": "y"}}


@pytest.fixture
def pair(upstream: Upstream, tmp_path: Path) -> Any:
    """Two backends for one model; `dear` is the second choice."""
    cheap, dear = upstream.site(f"{tmp_path.name}-cheap"), upstream.site(f"{tmp_path.name}-dear")
    backends = {
        "cheap": backend(cheap, models=["m-two"]),
        "dear": backend(dear, models=["m-two"], lanes={"standard": {"service_tier": "priority"}}),
    }
    with Gateway(tmp_path, {"backends": backends}, {"plain": PLAIN}) as gateway:
        yield gateway, cheap, dear


@pytest.mark.parametrize("headers", [{"x-tollway-deadline-ms": "400"}, {"x-stainless-read-timeout": "0.8"}], ids=["asked", "library"])
@pytest.mark.parametrize("reply", [
    pytest.param(HANG, id="no headers"),
    pytest.param(raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{", End.HANG), id="half a body"),
    pytest.param(stream(b": hello\n\n", End.HANG), id="a stream that says nothing"),
])  # fmt: skip
def test_a_deadline_is_answered_in_time(gateway: Gateway, openai: Site, reply: Any, headers: dict[str, str]) -> None:
    """504 in the caller's shape before its library gives up; the backend is let go, the attempt booked as perhaps served.

    A call is asked again if the machine was too slow to send it at all in its time.
    """
    openai.says(reply)
    while not openai.requests:
        answer = gateway.chat(chat_body(openai.model, stream=reply.framing == "chunked"), headers=headers)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_exceeded"
        assert answer.headers["x-should-retry"] == "false"
    assert openai.requests[0].hung_up.wait(PATIENCE_S)
    until(lambda: gateway.attempts(openai).get("sent_unanswered"), "the attempt to be booked as perhaps served")
    [attempt] = [a for call in gateway.booked(openai) for a in call["attempts"] if a["status"] == "sent_unanswered"]
    assert attempt["cost_usd"] is None


def test_a_callers_own_deadline_closes_no_lane(gateway: Gateway, openai: Site) -> None:
    """However often it is missed: the lane is others' too. Three failures would have closed it."""
    openai.says(HANG)
    while len(openai.requests) < 6:
        late = gateway.chat(chat_body(openai.model), headers={"x-tollway-deadline-ms": "400"})
        assert late.json()["error"]["code"] == "deadline_exceeded"
    openai.says(whole(chat_answer()))
    assert gateway.chat(chat_body(openai.model)).status_code == 200


def test_a_stream_that_has_begun_is_not_cut_by_its_deadline(gateway: Gateway, openai: Site) -> None:
    """The first byte came in time; where the machine was too slow for that, the call is asked again."""
    openai.says(stream(*chat_stream()[:3], Pause(0.8), *chat_stream()[3:]))
    body, headers = chat_body(openai.model, stream=True, stream_options={"include_usage": True}), {"x-tollway-deadline-ms": "500"}
    answer = until(lambda: found if (found := gateway.chat(body, headers=headers)).status_code == 200 else None, "a first byte in time")
    assert answer.content == b"".join(chat_stream())


def test_the_second_try_gets_what_is_left(upstream: Upstream, tmp_path: Path) -> None:
    """Not a fresh deadline: with that, no call would take less than five seconds, however quick the machine is."""
    names = [f"{tmp_path.name}-{n}" for n in range(4)]
    cheap, dear = [upstream.site(name + "-cheap") for name in names], [upstream.site(name + "-dear") for name in names]
    lanes = {"standard": {"service_tier": "priority"}}
    backends = {
        **{f"cheap-{n}": backend(site, models=[f"m-{n}"]) for n, site in enumerate(cheap)},
        **{f"dear-{n}": backend(site, models=[f"m-{n}"], lanes=lanes) for n, site in enumerate(dear)},
    }

    def in_time(gateway: Gateway, n: int) -> bool:
        cheap[n].says(whole(BUSY, 503, before=(Pause(2.0),)))
        dear[n].says(HANG)
        began = time.monotonic()
        assert gateway.chat(chat_body(f"m-{n}"), headers={"x-tollway-deadline-ms": "3000"}).status_code == 504
        return time.monotonic() - began < 5.0 and (len(cheap[n].requests), len(dear[n].requests)) == (1, 1)

    with Gateway(tmp_path, {"backends": backends}, {"plain": PLAIN}) as gateway:
        assert any(in_time(gateway, n) for n in range(len(names)))


def test_no_try_is_begun_with_too_little_time(pair: Any) -> None:
    """Half a second for the first, and a tenth is left."""
    gateway, cheap, dear = pair
    cheap.says(whole(BUSY, 503, before=(Pause(0.5),)))
    while not cheap.requests:
        answer = gateway.chat(chat_body("m-two"), headers={"x-tollway-deadline-ms": "600"})
        assert answer.status_code in (503, 504)
    assert (len(cheap.requests), len(dear.requests)) == (1, 0)


def test_a_call_that_took_all_its_time_to_come_is_not_sent(gateway: Gateway, openai: Site) -> None:
    """Its body came after its deadline: nobody waits for what a backend would be paid for."""
    openai.says(whole(chat_answer()))
    body = json.dumps(chat_body(openai.model)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key()}\r\n"
    head += f"content-type: application/json\r\nx-tollway-deadline-ms: 300\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as sock:
        sock.sendall(head.encode() + body[:10])
        gateway.ask("GET", "/healthz")          # the loop has come round: the head has been read
        time.sleep(0.4)
        sock.sendall(body[10:])
        answer = sock.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert b"deadline_exceeded" in answer
    assert not openai.requests
    assert gateway.chat(chat_body(openai.model)).status_code == 200


def test_further_tries_stay_in_their_budget(pair: Any) -> None:
    """Both backends reset every connection: of 30 calls at most three see a second try, and then the breakers keep calls off, but
    for one a second each."""
    gateway, cheap, dear = pair
    cheap.says(RESET)
    dear.says(RESET)
    began = time.monotonic()
    answers = [gateway.chat(chat_body("m-two")) for _ in range(30)]
    probes = int(time.monotonic() - began) + 1
    assert {answer.status_code for answer in answers} <= {502, 503}
    assert {answer.headers["x-should-retry"] for answer in answers if answer.status_code == 502} == {"false"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 503)
    assert len(dear.requests) <= 5 + probes
    assert len(cheap.requests) + len(dear.requests) < 18 + 2 * probes, "the breakers are open"


def test_a_lane_that_recovers_is_found_again(gateway: Gateway, openai: Site) -> None:
    """After three failures the lane rests; within seconds one call tries it, and then all."""
    openai.says(RESET)
    for _ in range(3):
        assert gateway.chat(chat_body(openai.model)).status_code == 502

    def rests() -> bool:
        """Or it has had its rest already, is tried, and rests longer."""
        seen = len(openai.requests)
        refused = gateway.chat(chat_body(openai.model))
        assert (refused.status_code == 502) == (len(openai.requests) > seen)
        return refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1

    until(rests, "the lane to rest")
    openai.says(whole(chat_answer()))
    until(lambda: gateway.chat(chat_body(openai.model)).status_code == 200, "the lane to be tried again")
    assert gateway.chat(chat_body(openai.model)).status_code == 200


def test_what_the_client_did_wrong_opens_no_breaker(gateway: Gateway, openai: Site) -> None:
    """Ten bad requests, then a good one."""
    openai.says(whole(BUSY, 400))
    assert {gateway.chat(chat_body(openai.model)).status_code for _ in range(10)} == {400}
    openai.says(whole(chat_answer()))
    assert gateway.chat(chat_body(openai.model)).status_code == 200


def test_a_deadline_over_is_no_leak(gateway: Gateway, openai: Site) -> None:
    """Timers and tasks are gone with their calls."""
    gate = Gate()
    openai.says(whole(chat_answer(), before=(gate,)))
    before = len(gateway.tasks())
    for _ in range(5):
        gateway.chat(chat_body(openai.model), headers={"x-tollway-deadline-ms": "50"})
    gate.open()
    until(lambda: len(gateway.tasks()) <= before, "tasks to end")
