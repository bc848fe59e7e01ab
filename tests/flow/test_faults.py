"""When a model server fails: what the client gets, and what is booked. reliability.md section 5, cell by cell."""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.build import (
    DONE,
    PLAIN,
    STOP,
    Gateway,
    backend,
    chat_answer,
    chat_body,
    chat_chunk,
    chat_stream,
    data,
    event,
    messages_answer,
    messages_body,
    messages_finish,
    messages_start,
    messages_stream,
    messages_text,
)
from tests.upstream import HANG, PATIENCE_S, RESET, End, Gate, Reply, Site, Upstream, raw, stream, until, whole

Fresh = Callable[[str], Site]
Hasty = Callable[[str, str], Site]


@dataclass(frozen=True)
class Words:
    """One dialect's way to say things."""

    dialect: str
    path: str
    body: Callable[..., dict[str, Any]]
    answer: Callable[..., dict[str, Any]]
    opening: Sequence[bytes]
    """A stream's first events, two words of text."""
    finish: Sequence[bytes]
    """A finish reason and usage."""
    end: bytes
    head: dict[str, str]
    """What stands beside `error` in an error."""


OPENAI = Words(
    "openai", "/v1/chat/completions", chat_body, chat_answer,
    [chat_chunk({"role": "assistant", "content": ""}), chat_chunk({"content": "Hello"}), chat_chunk({"content": " there"})],
    [chat_chunk({}, "stop"), chat_stream()[-2]], DONE, {},
)  # fmt: skip
ANTHROPIC = Words(
    "anthropic", "/v1/messages", messages_body, messages_answer,
    [messages_start(), *messages_text("Hello", " there")], messages_finish(), STOP, {"type": "error"},
)  # fmt: skip
BOTH = pytest.mark.parametrize("words", [pytest.param(OPENAI, id="openai"), pytest.param(ANTHROPIC, id="anthropic")])
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])


def error_of(words: Words, answer: httpx.Response) -> dict[str, Any]:
    """The error, once its shape is the dialect's own."""
    document = answer.json()
    assert document.get("type") == words.head.get("type")
    error: dict[str, Any] = document["error"]
    assert error["type"]
    assert error["message"]
    return error


def says_which_call(gateway: Gateway, site: Site, answer: httpx.Response) -> None:
    """An error of a call that a backend was asked says what an answer says: which call it is, where it went, what it took."""
    (call,) = gateway.booked(site)
    headers = answer.headers
    assert (headers["x-tollway-call"], headers["x-tollway-backend"], headers["x-tollway-lane"]) == (call["id"], site.name, call["lane"])
    assert (headers["x-tollway-class"], headers["x-tollway-reason"]) == (call["class"], call["reason"])
    assert headers.get("x-tollway-cost-usd") == call["cost_usd"]
    tokens = call["attempts"][0]["tokens"]
    assert headers["x-tollway-tokens"] == f"uncached={tokens['uncached'] or 0},cached=0,written=0,output={tokens['output'] or 0}"


def only_attempt(gateway: Gateway, site: Site) -> dict[str, Any]:
    (call,) = gateway.booked(site)
    (attempt,) = call["attempts"]
    found: dict[str, Any] = attempt
    return found


# before the first byte


@pytest.mark.parametrize(("reply", "status", "code", "booked", "free"), [
    pytest.param(RESET, 502, "upstream_broken", "failed", True, id="reset before headers"),
    pytest.param(raw(b""), 502, "upstream_broken", "failed", True, id="closed before headers"),
    pytest.param(HANG, 504, "upstream_timeout", "sent_unanswered", False, id="no headers in time"),
    pytest.param(raw(b"HTTP/1.1 200 OK\r\nconten"), 502, "upstream_broken", "sent_unanswered", False, id="closed in the headers"),
    pytest.param(raw(b"220 smtp.example ESMTP\r\n"), 502, "upstream_broken", "sent_unanswered", False, id="not HTTP"),
    pytest.param(whole({"error": {"message": "no", "type": "x"}}, 401), 502, "backend_credentials", "failed", True, id="401"),
    pytest.param(whole({"error": {"message": "no", "type": "x"}}, 403), 502, "backend_credentials", "failed", True, id="403"),
    pytest.param(whole({}, 307, location="http://127.0.0.1:1/"), 502, "upstream_error", "failed", True, id="redirect"),
    pytest.param(whole({}, 302, location="/elsewhere"), 502, "upstream_error", "failed", True, id="redirect to itself"),
])  # fmt: skip
@BOTH
@STREAMED
def test_a_fault_before_the_first_byte_is_a_status(
    gateway: Gateway, fresh: Fresh, hasty: Hasty, words: Words, streamed: bool, reply: Reply, status: int, code: str, booked: str, free: bool
) -> None:
    """502 or 504 in the caller's dialect, never 401 and never a host name; booked once."""
    site = hasty(words.dialect, "head") if reply is HANG else fresh(words.dialect)
    site.says(reply)
    answer = gateway.chat(words.body(site.model, stream=streamed), path=words.path)
    assert answer.status_code == status
    error = error_of(words, answer)
    if words is OPENAI:
        assert error["code"] == code
    assert "127.0.0.1" not in answer.text
    assert answer.headers["x-should-retry"] in ("true", "false")
    attempt = only_attempt(gateway, site)
    says_which_call(gateway, site, answer)
    assert attempt["status"] == booked
    assert (attempt["cost_usd"] == "0.000000000") is free
    assert attempt["tokens_from"] == ("none" if free else "estimate")


@BOTH
@STREAMED
def test_a_backend_that_is_not_there_is_a_502(upstream: Upstream, tmp_path: Path, words: Words, streamed: bool) -> None:
    """Refused connections cost nothing and name nobody's address."""
    site = Site("gone", "http://127.0.0.1:9/gone/v1")
    with Gateway(tmp_path, {"backends": {"gone": backend(site, words.dialect)}}, {"plain": PLAIN}) as gateway:
        answer = gateway.chat(words.body(site.model, stream=streamed), path=words.path)
        assert answer.status_code == 502
        error_of(words, answer)
        assert "127.0.0.1" not in answer.text
        attempt = only_attempt(gateway, site)
        assert (attempt["status"], attempt["cost_usd"], attempt["tokens_from"]) == ("failed", "0.000000000", "none")


@pytest.mark.parametrize("status", [429, 503, 529])
@BOTH
@STREAMED
def test_a_refusal_is_passed_on_with_its_wait(
    gateway: Gateway, fresh: Fresh, words: Words, streamed: bool, status: int
) -> None:
    """Where no other lane can serve, the client gets the provider's status, words and Retry-After; nothing is booked as spent."""
    site = fresh(words.dialect)
    document = {**words.head, "error": {"type": "rate_limit_error", "message": "Slow down, please."}}
    site.says(whole(document, status, retry_after="7"))
    answer = gateway.chat(words.body(site.model, stream=streamed), path=words.path)
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "7")
    assert error_of(words, answer)["message"] == "Slow down, please."
    assert answer.headers["x-should-retry"] == "false"
    says_which_call(gateway, site, answer)
    attempt = only_attempt(gateway, site)
    assert (attempt["status"], attempt["http_status"], attempt["cost_usd"]) == ("failed", status, "0.000000000")
    assert len(site.requests) == 1


@BOTH
def test_a_cooled_lane_says_how_long(gateway: Gateway, fresh: Fresh, words: Words) -> None:
    """After a 429 with Retry-After the lane is left alone: the next call is refused here, with a wait, and not sent."""
    site = fresh(words.dialect)
    site.says(whole({"error": {"message": "x", "type": "y"}}, 429, retry_after="30"))
    gateway.chat(words.body(site.model), path=words.path)
    answer = gateway.chat(words.body(site.model), path=words.path)
    assert answer.status_code in (429, 503)
    assert 5 < int(answer.headers["retry-after"]) <= 30  # what is left of it, not some seconds
    assert len(site.requests) == 1


@pytest.mark.parametrize("status", [400, 404, 413, 422])
@BOTH
@STREAMED
def test_the_clients_own_errors_pass_as_they_are(
    gateway: Gateway, fresh: Fresh, words: Words, streamed: bool, status: int
) -> None:
    """Same status, same bytes, one try, no cost."""
    site = fresh(words.dialect)
    reply = whole({**words.head, "error": {"message": "max_tokens is too large", "type": "invalid_request_error", "param": "max_tokens", "code": None}}, status)
    site.says(reply)
    answer = gateway.chat(words.body(site.model, stream=streamed), path=words.path)
    assert (answer.status_code, answer.content) == (status, reply.body)
    attempt = only_attempt(gateway, site)
    assert (attempt["status"], attempt["cost_usd"], len(site.requests)) == ("failed", "0.000000000", 1)


@pytest.mark.parametrize("status", [500, 502, 504])
@BOTH
def test_a_backends_own_failure_is_not_repeated(gateway: Gateway, fresh: Fresh, words: Words, status: int) -> None:
    """500, 502 and 504 may have been billed: one try, the status passed on in the caller's shape."""
    site = fresh(words.dialect)
    site.says(Reply(status=status, headers=(("content-type", "text/html"),), steps=(b"<html>nginx at 10.1.2.3</html>",)))
    answer = gateway.chat(words.body(site.model), path=words.path)
    assert answer.status_code == status
    error_of(words, answer)
    assert "10.1.2.3" not in answer.text
    assert answer.headers["content-type"] == "application/json"
    assert len(site.requests) == 1


@BOTH
@STREAMED
def test_an_error_in_a_200_is_a_502(gateway: Gateway, fresh: Fresh, words: Words, streamed: bool) -> None:
    """A success status with an error inside is a failed attempt, and free unless it says otherwise."""
    site = fresh(words.dialect)
    document = {"type": "error", "error": {"type": "overloaded_error", "message": "boom"}}
    site.says(stream(event(document) if words is ANTHROPIC else data({"error": {"message": "boom", "type": "server_error"}})) if streamed else whole(document))
    answer = gateway.chat(words.body(site.model, stream=streamed), path=words.path)
    assert answer.status_code == 502
    assert "boom" in error_of(words, answer)["message"]
    attempt = only_attempt(gateway, site)
    assert (attempt["status"], attempt["cost_usd"]) == ("failed", "0.000000000")


@pytest.mark.parametrize("reply", [
    pytest.param(whole(b"<html>hello</html>"), id="html"),
    pytest.param(whole(b"[1, 2]"), id="an array"),
    pytest.param(whole(b'{"id": "x", "choi'), id="half"),
    pytest.param(whole(b""), id="nothing"),
])  # fmt: skip
@BOTH
def test_a_200_that_is_no_answer_is_a_502(gateway: Gateway, fresh: Fresh, words: Words, reply: Reply) -> None:
    """What cannot be read is not passed on as a success; it may have been billed, so it is booked as an estimate."""
    site = fresh(words.dialect)
    site.says(reply)
    answer = gateway.chat(words.body(site.model), path=words.path)
    assert answer.status_code == 502
    error_of(words, answer)
    attempt = only_attempt(gateway, site)
    assert (attempt["status"], attempt["tokens_from"]) == ("malformed", "estimate")


@BOTH
def test_a_whole_answer_that_breaks_off_is_a_502(gateway: Gateway, fresh: Fresh, words: Words) -> None:
    """The client gets no half answer; it may have been billed."""
    site = fresh(words.dialect)
    body = json.dumps(words.answer()).encode()
    site.says(raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body), body[:50]))
    answer = gateway.chat(words.body(site.model), path=words.path)
    assert answer.status_code == 502
    error_of(words, answer)
    attempt = only_attempt(gateway, site)
    assert (attempt["status"], attempt["tokens_from"]) == ("cut", "estimate")


@BOTH
def test_a_whole_answer_that_falls_silent_is_a_504(gateway: Gateway, hasty: Hasty, words: Words) -> None:
    """Headers came, the body did not."""
    site = hasty(words.dialect, "rest")
    site.says(raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{", End.HANG))
    answer = gateway.chat(words.body(site.model), path=words.path)
    assert answer.status_code == 504
    error_of(words, answer)
    assert only_attempt(gateway, site)["status"] == "stalled"
    assert site.requests[0].hung_up.wait(PATIENCE_S)


# after the first byte


@pytest.mark.parametrize(("steps", "booked"), [
    pytest.param((End.CUT,), "cut", id="cut"),
    pytest.param((End.RESET,), "cut", id="reset"),
    pytest.param((), "unterminated", id="clean end, no finish reason"),
    pytest.param((End.HANG,), "stalled", id="silence"),
    pytest.param((b"data: {not json\n\n",), "malformed", id="not JSON"),
    pytest.param((b"data: " + b"x" * (2 << 20), End.HANG), "malformed", id="an event without an end"),
])  # fmt: skip
@BOTH
def test_a_stream_that_breaks_tells_the_client(
    gateway: Gateway, fresh: Fresh, hasty: Hasty, words: Words, steps: Sequence[Any], booked: str
) -> None:
    """What came is given out, then an error event and no end marker; booked as an estimate, one try."""
    site = hasty(words.dialect, "rest") if booked == "stalled" else fresh(words.dialect)
    site.says(stream(b"".join(words.opening), *steps))
    answer = gateway.chat(words.body(site.model, stream=True), path=words.path)
    assert answer.status_code == 200
    *came, error, rest = answer.content.split(b"\n\n")
    assert b"\n\n".join(came) + b"\n\n" == b"".join(words.opening)
    assert rest == b""
    if words is ANTHROPIC:
        assert error.startswith(b"event: error\ndata: ")
    document = json.loads(error.partition(b"data: ")[2])
    assert document["error"]["message"]
    assert words.end not in answer.content
    attempt = only_attempt(gateway, site)
    assert (attempt["status"], attempt["tokens_from"]) == (booked, "mixed" if words is ANTHROPIC else "estimate")
    assert attempt["tokens"]["output"] in range(1, 5)
    assert float(attempt["cost_usd"]) > 0
    assert len(site.requests) == 1
    if End.HANG in steps:
        assert site.requests[0].hung_up.wait(PATIENCE_S)


@BOTH
def test_a_stream_without_its_end_marker_gets_one(gateway: Gateway, fresh: Fresh, words: Words) -> None:
    """The finish reason is the end of an answer: the marker is added, the figures are the provider's."""
    site = fresh(words.dialect)
    site.says(stream(*words.opening, *words.finish))
    answer = gateway.chat(words.body(site.model, stream=True, **ask(words)), path=words.path)
    assert answer.content == b"".join([*words.opening, *words.finish, words.end])
    attempt = only_attempt(gateway, site)
    assert (attempt["status"], attempt["tokens_from"], attempt["cost_usd"]) == ("ok", "provider", "0.000160000")


@BOTH
def test_an_error_event_in_a_stream_is_passed_on_once(gateway: Gateway, fresh: Fresh, words: Words) -> None:
    """The provider's own words reach the client; there is no second error and no end marker."""
    site = fresh(words.dialect)
    document = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    said = event(document) if words is ANTHROPIC else data({"error": {"message": "Overloaded", "type": "server_error"}})
    site.says(stream(*words.opening, said))
    answer = gateway.chat(words.body(site.model, stream=True), path=words.path)
    assert answer.content == b"".join([*words.opening, said])
    attempt = only_attempt(gateway, site)
    assert attempt["status"] == "cut"
    assert attempt["tokens"]["output"] in range(1, 5)


# usage


def ask(words: Words) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}} if words is OPENAI else {}


def test_an_answer_without_usage_is_estimated(gateway: Gateway, openai: Site) -> None:
    """The client gets its answer; the ledger has a marked estimate, not zero."""
    answer = chat_answer()
    del answer["usage"]
    openai.says(whole(answer))
    assert gateway.chat(chat_body(openai.model)).json() == answer
    attempt = only_attempt(gateway, openai)
    assert (attempt["status"], attempt["tokens_from"]) == ("ok", "estimate")
    assert attempt["tokens"]["uncached"] > 0
    assert attempt["tokens"]["output"] in range(1, 10)
    assert float(attempt["cost_usd"]) > 0


def test_a_stream_without_usage_is_estimated(gateway: Gateway, openai: Site) -> None:
    """Five words are a handful of tokens."""
    openai.says(stream(*chat_stream(usage=False)))
    assert gateway.chat(chat_body(openai.model, stream=True)).content == b"".join(chat_stream(usage=False))
    attempt = only_attempt(gateway, openai)
    assert (attempt["status"], attempt["tokens_from"]) == ("ok", "estimate")
    assert attempt["tokens"]["output"] in range(1, 10)


def test_zero_is_not_missing(gateway: Gateway, openai: Site) -> None:
    """A provider that reports zero is believed."""
    openai.says(whole(chat_answer(usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})))
    gateway.chat(chat_body(openai.model))
    attempt = only_attempt(gateway, openai)
    assert (attempt["tokens_from"], attempt["cost_usd"]) == ("provider", "0.000000000")


@pytest.mark.parametrize("usage", [
    {"prompt_tokens": -5, "completion_tokens": 2},
    {"prompt_tokens": 10, "completion_tokens": 2.5},
    {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 99}},
    {"prompt_tokens": "10", "completion_tokens": True},
    {"prompt_tokens": 10**30, "completion_tokens": 1},
])  # fmt: skip
@STREAMED
def test_impossible_usage_never_lowers_spending(gateway: Gateway, openai: Site, usage: dict[str, Any], streamed: bool) -> None:
    """The client gets the answer as it came; nothing negative is booked, nothing breaks."""
    if streamed:
        reply = stream(*chat_stream(usage=False)[:-1], data({"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": usage}), DONE)
    else:
        reply = whole(chat_answer(usage=usage))
    openai.says(reply)
    answer = gateway.chat(chat_body(openai.model, stream=streamed, **(ask(OPENAI) if streamed else {})))
    assert answer.status_code == 200
    assert answer.content == reply.body
    attempt = only_attempt(gateway, openai)
    tokens = attempt["tokens"]
    assert all(tokens[name] is None or tokens[name] >= 0 for name in ("uncached", "cache_read", "output"))
    assert attempt["cost_usd"] is None or float(attempt["cost_usd"]) >= 0


def test_a_bomb_is_a_502(gateway: Gateway, openai: Site) -> None:
    """A packed answer that unpacks without end is stopped at the bound."""
    import gzip

    openai.says(Reply(headers=(("content-type", "application/json"), ("content-encoding", "gzip")), steps=(gzip.compress(bytes(200 << 20), 1),)))
    answer = gateway.chat(chat_body(openai.model))
    assert answer.status_code == 502


# another lane


@pytest.fixture
def pair(upstream: Upstream, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Two backends for one model; `dear` is the second choice. A test of silence has `cheap` given up soon."""
    hasty = {"first_byte_timeout_ms": 800} if "reply" in request.fixturenames and request.getfixturevalue("reply") is HANG else {}
    cheap, dear = upstream.site(f"{tmp_path.name}-cheap"), upstream.site(f"{tmp_path.name}-dear")
    lanes = {"standard": {"service_tier": "priority"}}
    backends = {
        "cheap": backend(cheap, models=["m-two"], **hasty),
        "dear": backend(dear, models=["m-two"], lanes=lanes),
    }
    with Gateway(tmp_path, {"backends": backends}, {"plain": PLAIN}) as gateway:
        yield gateway, cheap, dear


@pytest.mark.parametrize(("reply", "booked"), [
    pytest.param(whole({"error": {"message": "x", "type": "y"}}, 429, retry_after="30"), "failed", id="429"),
    pytest.param(whole({"error": {"message": "x", "type": "y"}}, 503), "failed", id="503"),
    pytest.param(whole({"error": {"message": "x", "type": "y"}}, 529), "failed", id="529"),
    pytest.param(whole({"error": {"message": "x", "type": "y"}}, 401), "failed", id="401"),
    pytest.param(RESET, "failed", id="reset before headers"),
    pytest.param(whole({"error": {"message": "x", "type": "y"}}), "failed", id="200 with an error"),
])  # fmt: skip
@STREAMED
def test_another_lane_answers_instead(pair: Any, reply: Reply, booked: str, streamed: bool) -> None:
    """The client sees one good answer; both attempts are booked, the first for nothing."""
    gateway, cheap, dear = pair
    cheap.says(reply)
    dear.says(stream(*chat_stream()) if streamed else whole(chat_answer()))
    answer = gateway.chat(chat_body("m-two", stream=streamed))
    assert answer.status_code == 200
    assert answer.headers["x-tollway-backend"] == "dear"
    first, second = gateway.call(answer.headers["x-tollway-call"])["attempts"]
    assert (first["backend"], first["status"], first["cost_usd"]) == ("cheap", booked, "0.000000000")
    assert (second["backend"], second["status"], second["tokens_from"]) == ("dear", "ok", "provider")
    assert dear.requests[0].json["service_tier"] == "priority"
    assert "service_tier" not in cheap.requests[0].json


def test_a_lane_that_wants_a_moment_is_asked_again(upstream: Upstream, tmp_path: Path) -> None:
    """With `retries`: the wait is the latest one asked for, a longer one is passed on, and each try is booked."""
    site = upstream.site(tmp_path.name)
    busy = {"error": {"message": "x", "type": "y"}}
    config = {"backends": {"b": backend(site)}, "retries": 2, "max_retry_wait_ms": 60_000}
    with Gateway(tmp_path, config, {"plain": PLAIN}) as gateway:
        site.says(whole(busy, 503), whole(busy, 429, retry_after="1"), whole(chat_answer()))
        answer = gateway.chat(chat_body(site.model))
        assert answer.status_code == 200
        assert [a["http_status"] for a in gateway.call(answer.headers["x-tollway-call"])["attempts"]] == [503, 429, 200]
        first, second, third = site.requests
        assert second.at - first.at < PATIENCE_S
        assert third.at - second.at >= 1.0
        site.says(whole(busy, 429, retry_after="200"))
        until(lambda: gateway.chat(chat_body(site.model)).status_code == 429, "the lane to be tried again")
        assert len(site.requests) == 4


@pytest.mark.parametrize("reply", [HANG, whole({"error": {"message": "x"}}, 500), whole({"error": {"message": "x"}}, 401), RESET])
def test_nothing_else_is_asked_again(upstream: Upstream, tmp_path: Path, reply: Reply) -> None:
    """Time-outs, 5xx and refused credentials end the call, whatever `retries` says."""
    site = upstream.site(tmp_path.name)
    site.says(reply)
    hasty = {"first_byte_timeout_ms": 300} if reply is HANG else {}
    config = {"backends": {"b": backend(site, **hasty)}, "retries": 3}
    with Gateway(tmp_path, config, {"plain": PLAIN}) as gateway:
        assert gateway.chat(chat_body(site.model)).status_code in (500, 502, 504)
        assert len(site.requests) == 1


@BOTH
def test_a_long_silence_is_filled_with_pings(upstream: Upstream, tmp_path: Path, words: Words) -> None:
    """The dialect's own way to say "still here", again and again; the answer is the same."""
    site = upstream.site(tmp_path.name)
    gate, content = Gate(), b""
    ping = b'event: ping\ndata: {"type":"ping"}\n\n' if words is ANTHROPIC else b": keep-alive\n"
    site.says(stream(*words.opening, gate, *words.finish, words.end))
    config = {"backends": {"b": backend(site, words.dialect)}, "keepalive_ms": 300}
    with Gateway(tmp_path, config, {"plain": PLAIN}) as gateway:
        asks = {"json": words.body(site.model, stream=True, **ask(words)), "headers": {"authorization": f"Bearer {gateway.key()}"}}
        with gateway.http.stream("POST", gateway.url + words.path, **asks) as answer:
            for piece in answer.iter_raw():
                content += piece
                if content.count(ping) >= 2:
                    gate.open()
        assert content.replace(ping, b"") == b"".join([*words.opening, *words.finish, words.end])


def test_no_second_try_after_the_first_byte(pair: Any) -> None:
    """What broke in the middle is told, not silently begun anew."""
    gateway, cheap, dear = pair
    cheap.says(stream(*OPENAI.opening, End.CUT))
    answer = gateway.chat(chat_body("m-two", stream=True))
    assert b'"error"' in answer.content
    assert (len(cheap.requests), len(dear.requests)) == (1, 0)


@pytest.mark.parametrize("reply", [pytest.param(HANG, id="no headers in time"), pytest.param(whole({"error": {"message": "x"}}, 400), id="400")])
def test_what_may_have_been_billed_or_is_the_clients_fault_is_not_sent_elsewhere(pair: Any, reply: Reply) -> None:
    """A time-out after sending, and the client's own errors, end the call."""
    gateway, cheap, dear = pair
    cheap.says(reply)
    assert gateway.chat(chat_body("m-two")).status_code in (504, 400)
    assert (len(cheap.requests), len(dear.requests)) == (1, 0)


def test_the_streams_of_both_dialects_are_whole(gateway: Gateway, fresh: Fresh) -> None:
    """The scripts that the tables above cut short are good as they stand."""
    for words, parts in ((OPENAI, chat_stream()), (ANTHROPIC, messages_stream())):
        site = fresh(words.dialect)
        site.says(stream(*parts))
        gateway.chat(words.body(site.model, stream=True), path=words.path)
        assert only_attempt(gateway, site)["status"] == "ok"
