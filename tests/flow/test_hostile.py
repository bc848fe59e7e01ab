"""What a hostile or broken backend may answer, and odd ways to ask, beyond the fault table: each was tried by hand first."""
from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from tests.build import (
    DONE,
    ENV,
    Gateway,
    chat_answer,
    chat_body,
    chat_chunk,
    chat_stream,
    data,
    messages_answer,
    messages_body,
)
from tests.upstream import Reply, Site, raw, stream, whole
from tests.web.test_door import CHAT, answers, connected, request

Fresh = Callable[[str], Site]


def attempt(gateway: Gateway, site: Site) -> dict[str, Any]:
    (call,) = gateway.booked(site)
    (found,) = call["attempts"]
    return dict(found)


def line(status: str, body: bytes = b"{}") -> Reply:
    return raw(b"HTTP/1.1 %s X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body))


# answers


@pytest.mark.parametrize("status", ["099", "600", "700", "999"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_a_status_that_there_is_not_is_a_502(gateway: Gateway, openai: Site, status: str, streamed: bool) -> None:
    """Once 600 left the client without any answer."""
    openai.says(line(status))
    answer = gateway.chat(chat_body(openai.model, stream=streamed))
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_broken")
    assert attempt(gateway, openai)["status"] == "sent_unanswered"


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503, 529])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_our_key_does_not_come_back(gateway: Gateway, fresh: Fresh, dialect: str, status: int) -> None:
    """Some servers repeat a key that they do not like, in full: in JSON, in a header, in plain text."""
    site, key = fresh(dialect), ENV["PROVIDER_KEY"]
    path, body = (CHAT, chat_body(site.model)) if dialect == "openai" else ("/v1/messages", messages_body(site.model))
    error = {"type": "error", "error": {"message": f"Incorrect API key provided: {key}. {key}", "type": "x", "key": key}}
    for reply in (whole(error, status), whole(f"bad key {key}".encode(), status, content_type="text/plain")):
        site.says(reply)
        answer = gateway.chat(body, path=path)
        assert answer.status_code in (status, 503)  # the lane may be left alone after the first
        assert key not in answer.text


@pytest.mark.parametrize("tokens", [10**9 + 1, 10**12, 2**53, 2**63, 10**30])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_no_backend_bills_a_team_out_of_its_budget(gateway: Gateway, openai: Site, tokens: int, streamed: bool) -> None:
    """Counters that no answer can have are estimated, and flagged."""
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens, "total_tokens": tokens}
    openai.says(stream(*chat_stream(usage=False)[:-1], data({"choices": [], "usage": usage}), DONE) if streamed else whole(chat_answer(usage=usage)))
    assert gateway.chat(chat_body(openai.model, stream=streamed)).status_code == 200
    booked = attempt(gateway, openai)
    assert booked["tokens_from"] == "estimate"
    assert 0 < float(booked["cost_usd"]) < 0.001


@pytest.mark.parametrize(("told", "shown"), [
    pytest.param("m-\u202eevil", "m-evil", id="a direction mark"), pytest.param("m-\x1b[2J", "m-[2J", id="a terminal's escape"),
    pytest.param("m-" + "x" * 5_000, "m-" + "x" * 254, id="endless"), pytest.param("\x00", None, id="nothing that prints"),
    pytest.param(5, None, id="a number"), pytest.param(["m"], None, id="a list"), pytest.param({}, None, id="an object"),
])  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_names_of_a_backend_are_fit_for_the_books(gateway: Gateway, openai: Site, told: object, shown: str | None, streamed: bool) -> None:
    """The client gets them as they are; reports and terminals do not."""
    documents = [{**json.loads(step[6:]), "model": told} for step in chat_stream()[:-1]]
    openai.says(stream(*map(data, documents), DONE) if streamed else whole({**chat_answer(), "model": told, "service_tier": told}))
    answer = gateway.chat(chat_body(openai.model, stream=streamed))
    if answer.status_code == 200:
        gateway.booked(openai)
        (row,) = gateway.ask("GET", f"/tollway/usage?by=served_model&model={openai.model}").json()["rows"]
        assert (row["served_model"] or None) == shown
    else:
        assert answer.status_code == 502


@pytest.mark.parametrize("reply", [
    pytest.param(line("204", b""), id="204"), pytest.param(whole(b"", 205), id="205 and nothing"),
    pytest.param(whole(b"\xef\xbb\xbf" + json.dumps(chat_answer()).encode()), id="a byte order mark"),
    pytest.param(whole(json.dumps(chat_answer("caf\u00e9"), ensure_ascii=False).encode("latin-1")), id="latin-1"),
    pytest.param(whole(json.dumps(chat_answer())[:-1].encode() + b',"x":' + b"[" * 3_000 + b"]" * 3_000 + b"}"), id="too deep"),
    pytest.param(whole(json.dumps(chat_answer())[:-1].encode() + b',"x":NaN}'), id="NaN"),
    pytest.param(stream(*chat_stream()), id="a stream that nobody asked for"),
    pytest.param(raw(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"), id="101"),
    pytest.param(raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 30_000), id="100 for ever"),
    pytest.param(raw(b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 100_000 + b"\r\n{}"), id="headers for ever"),
    pytest.param(raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}   "), id="two lengths"),
    pytest.param(raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"), id="two framings"),
])  # fmt: skip
def test_what_is_no_answer_is_a_502(gateway: Gateway, openai: Site, reply: Reply) -> None:
    """In the caller's shape, booked once, and the next call is served."""
    openai.says(reply, whole(chat_answer()))
    answer = gateway.chat(chat_body(openai.model))
    assert answer.status_code == 502
    assert answer.json()["error"]["code"].startswith("upstream_")
    assert attempt(gateway, openai)["status"] in ("malformed", "sent_unanswered")
    assert gateway.chat(chat_body(openai.model)).status_code == 200


def test_bytes_behind_an_answer_are_not_the_next_ones(gateway: Gateway, openai: Site) -> None:
    """A backend that sends a second answer ahead does not have it given to the next caller."""
    body = json.dumps(chat_answer("mine")).encode()
    evil = json.dumps(chat_answer("EVIL")).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    openai.says(raw(head % len(body) + body + head % len(evil) + evil), whole(chat_answer("next")))
    texts = [gateway.chat(chat_body(openai.model)).json()["choices"][0]["message"]["content"] for _ in range(2)]
    assert texts == ["mine", "next"]


def test_what_comes_behind_the_end_is_not_given_out(gateway: Gateway, openai: Site) -> None:
    openai.says(stream(*chat_stream(), chat_chunk({"content": "EVIL"})))
    text = gateway.chat(chat_body(openai.model, stream=True)).text
    assert "EVIL" not in text
    assert text.endswith("data: [DONE]\n\n")


def test_a_backend_sets_no_header_of_ours(gateway: Gateway, anthropic: Site) -> None:
    anthropic.says(whole(messages_answer(), set_cookie="a=b", x_tollway_cost_usd="0", x_tollway_call="fake", x_other="1", connection="x-other"))
    answer = gateway.chat(messages_body(anthropic.model), path="/v1/messages")
    assert answer.headers["x-tollway-call"].startswith("call_")
    assert float(answer.headers["x-tollway-cost-usd"]) > 0
    assert not {"set-cookie", "x-other"} & set(answer.headers)


# questions


@pytest.mark.parametrize("version", ["0.9", "2.0", "3.0", "1.2"])
def test_other_versions_of_http_are_refused(gateway: Gateway, openai: Site, version: str) -> None:
    with connected(gateway) as sock:
        sock.sendall(request(gateway, openai, version=version))
        status, _ = answers(sock, 1)[0]
    assert status == 400
    assert not openai.requests


def test_a_request_of_one_line_is_refused(gateway: Gateway) -> None:
    """HTTP/0.9 has no headers, so nobody could say who asks."""
    with connected(gateway) as sock:
        sock.sendall(b"GET /healthz\r\n\r\n")
        assert answers(sock, 1)[0][0] == 400


@pytest.mark.parametrize(("packed", "status"), [
    pytest.param(lambda body: zstandard.compress(body[:20]) + zstandard.compress(body[20:]), 200, id="two frames are one text"),
    pytest.param(lambda body: zstandard.compress(body) * 2, 400, id="the text twice"),
    pytest.param(lambda body: zstandard.compress(body) + b"junk", 400, id="something behind"),
    pytest.param(lambda body: zstandard.compress(body)[:-3], 400, id="cut"),
    pytest.param(lambda body: zstandard.compress(body)[:3], 400, id="hardly begun"),
    pytest.param(lambda body: zstandard.compress(b" " * (50 << 20)), 413, id="a bomb"),
    pytest.param(lambda body: b"".join(zstandard.compress(b" " * (1 << 19)) for _ in range(100)), 413, id="a bomb of many"),
])  # fmt: skip
def test_zstd_is_read_whole_or_not_at_all(gateway: Gateway, openai: Site, packed: Callable[[bytes], bytes], status: int) -> None:
    openai.says(whole(chat_answer()))
    content = packed(json.dumps(chat_body(openai.model)).encode())
    assert gateway.chat(content, headers={"content-encoding": "zstd"}).status_code == status


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_balancers_may_ask_by_head(gateway: Gateway, path: str) -> None:
    assert gateway.http.head(gateway.url + path).status_code == 200
    assert gateway.http.get(gateway.url + path).status_code == 200


def test_a_request_byte_by_byte(gateway: Gateway, openai: Site) -> None:
    openai.says(whole(chat_answer()))
    with connected(gateway) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request(gateway, openai):
            sock.sendall(bytes([byte]))
        assert answers(sock, 1)[0][0] == 200
