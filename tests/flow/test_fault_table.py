"""reliability.md section 5 as one table: every fault, in three dialects, streamed and not (C7)."""
from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    free_port,
    messages_answer,
    messages_body,
    messages_finish,
    messages_start,
    messages_text,
)
from tests.upstream import HANG, RESET, End, Reply, Site, Upstream, raw, stream, whole

BUSY = {"error": {"message": "busy", "type": "server_error"}}
RESPONSE = {
    "id": "resp_1", "object": "response", "status": "completed", "model": "m-served",
    "output": [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "Hello there", "annotations": []}]}],
    "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 60}, "output_tokens": 5, "total_tokens": 105},
}  # fmt: skip


def responses_opening() -> list[bytes]:
    begun = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
    deltas = [
        {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": word}
        for word in ("Hello", " there")
    ]
    return [event({"type": "response.created", "response": begun}), *map(event, deltas)]


@dataclass(frozen=True)
class Words:
    """One dialect's way to say things."""

    name: str
    backend: dict[str, Any]
    path: str
    body: Callable[..., dict[str, Any]]
    answer: Callable[[], dict[str, Any]]
    opening: Sequence[bytes]
    finish: Sequence[bytes]
    """A finish reason and usage; of an API where that is the end itself, nothing."""
    end: bytes
    usage: str
    """Where an answer's usage stands."""


DIALECTS = [
    Words(
        "chat", {"dialect": "openai"}, "/v1/chat/completions", chat_body, chat_answer,
        [chat_chunk({"role": "assistant", "content": ""}), chat_chunk({"content": "Hello"}), chat_chunk({"content": " there"})],
        [chat_chunk({}, "stop"), chat_stream()[-2]], DONE, "prompt_tokens",
    ),
    Words(
        "messages", {"dialect": "anthropic"}, "/v1/messages", messages_body, messages_answer,
        [messages_start(), *messages_text("Hello", " there")], messages_finish(), STOP, "input_tokens",
    ),
    Words(
        "responses", {"dialect": "openai", "speaks": ["responses"]}, "/v1/responses",
        lambda model, **fields: {"model": model, "input": "Say hello.", **fields}, lambda: json.loads(json.dumps(RESPONSE)),
        responses_opening(), [], event({"type": "response.completed", "response": RESPONSE}), "input_tokens",
    ),
]  # fmt: skip


def without_usage(words: Words) -> dict[str, Any]:
    return {name: value for name, value in words.answer().items() if name != "usage"}


def with_usage(words: Words, count: Any) -> dict[str, Any]:
    answer = words.answer()
    return {**answer, "usage": {**answer["usage"], words.usage: count}}


def bomb() -> Reply:
    return Reply(headers=(("content-type", "application/json"), ("content-encoding", "gzip")), steps=(gzip.compress(bytes(200 << 20), 1),))


Script = Callable[[Words], Reply]
ZERO, UNKNOWN, PRICED = "zero", "unknown", "priced"


@dataclass(frozen=True)
class Row:
    """A fault; what the client gets for a status (in a stream that has begun: an error event), and how it is booked."""

    fault: str
    script: Script
    status: set[int]
    booked: set[str]
    cost: set[str]
    when: str = "both"
    """`whole`, `stream` or `both`."""
    retry_after: str | None = None
    hasty: dict[str, int] = field(default_factory=dict)
    """What the backend does not wait for: of no other row, for a busy machine is silent too."""


def breaks(*steps: Any) -> Script:
    return lambda words: stream(b"".join(words.opening), *steps)


def says(status: int, **headers: str) -> Script:
    return lambda words: whole(BUSY if words.name != "messages" else {"type": "error", **BUSY}, status, **headers)


BROKEN = {PRICED}
ROWS = [
    Row("refused", lambda words: HANG, {502}, {"failed"}, {ZERO}),
    Row("reset before headers", lambda words: RESET, {502}, {"failed"}, {ZERO}),
    Row("no headers in time", lambda words: HANG, {504}, {"sent_unanswered"}, {UNKNOWN}, hasty={"first_byte_timeout_ms": 600}),
    Row("429", says(429, retry_after="7"), {429}, {"failed"}, {ZERO}, retry_after="7"),
    Row("429 for years", says(429, retry_after="Wed, 21 Oct 2099 07:28:00 GMT"), {429}, {"failed"}, {ZERO}, retry_after="3600"),
    Row("503", says(503), {503}, {"failed"}, {ZERO}),
    Row("529", says(529), {529}, {"failed"}, {ZERO}),
    Row("401", says(401), {502}, {"failed"}, {ZERO}),
    Row("403", says(403), {502}, {"failed"}, {ZERO}),
    Row("400", says(400), {400}, {"failed"}, {ZERO}),
    Row("404", says(404), {404}, {"failed"}, {ZERO}),
    Row("413", says(413), {413}, {"failed"}, {ZERO}),
    Row("422", says(422), {422}, {"failed"}, {ZERO}),
    Row("redirect", says(302, location="http://127.0.0.1:1/"), {502}, {"failed"}, {ZERO}),
    Row("200 with an error", lambda words: whole({"type": "error", **BUSY}), {502}, {"failed"}, {ZERO}, when="whole"),
    Row("bomb", lambda words: bomb(), {502}, {"cut", "malformed"}, {UNKNOWN, ZERO, PRICED}, when="whole"),
    Row("half a body", lambda words: raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{"), {502}, {"cut"}, {PRICED, UNKNOWN}, when="whole"),
    Row("no usage", lambda words: whole(without_usage(words)), {200}, {"ok"}, {PRICED}, when="whole"),
    Row("negative usage", lambda words: whole(with_usage(words, -5)), {200}, {"ok", "unpriced"}, {PRICED, ZERO, UNKNOWN}, when="whole"),
    Row("usage of halves", lambda words: whole(with_usage(words, 2.5)), {200}, {"ok", "unpriced"}, {PRICED, ZERO, UNKNOWN}, when="whole"),
    Row("cut", breaks(End.CUT), set(), {"cut"}, BROKEN, when="stream"),
    Row("reset", breaks(End.RESET), set(), {"cut"}, BROKEN, when="stream"),
    Row("clean end without a finish", breaks(), set(), {"unterminated"}, BROKEN, when="stream"),
    Row("silence", breaks(End.HANG), set(), {"stalled"}, BROKEN, when="stream", hasty={"idle_timeout_ms": 500}),
    Row("an event that is not JSON", breaks(b"data: {not json\n\n"), set(), {"malformed"}, BROKEN, when="stream"),
    Row("an event without end", breaks(b"data: " + b"x" * (2 << 20), End.HANG), set(), {"malformed"}, BROKEN, when="stream"),
    Row("an error event", lambda words: stream(*words.opening, _error_event(words)), set(), {"cut"}, BROKEN, when="stream"),
    Row("finish and no end marker", lambda words: stream(*words.opening, *words.finish), {200}, {"ok"}, {PRICED}, when="stream"),
]  # fmt: skip


def _error_event(words: Words) -> bytes:
    if words.name == "chat":
        return data(BUSY)
    return event({"type": "error", **BUSY} if words.name == "messages" else {"type": "error", "code": "server_error", "message": "busy", "param": None})


CELLS = [
    (row, words, streamed)
    for row in ROWS for words in DIALECTS for streamed in (False, True)
    if row.when in ("both", "stream" if streamed else "whole") and not (row.fault.startswith("finish") and not words.finish)
]  # fmt: skip


def _name(place: int) -> str:
    return f"f{place}"


@pytest.fixture(scope="module")
def bench(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, list[Site]]]:
    """A backend for each cell, so that a lane that rests rests for itself."""
    sites = [upstream.site(_name(place)) for place in range(len(CELLS))]
    backends = {}
    for site, (row, words, _) in zip(sites, CELLS, strict=True):
        backends[site.name] = backend(site, **words.backend, **row.hasty)
        if row.fault == "refused":
            backends[site.name]["url"] = f"http://127.0.0.1:{free_port()}/v1"
    with Gateway(tmp_path_factory.mktemp("faults"), {"backends": backends}, {"plain": PLAIN}) as gateway:
        yield gateway, sites


@pytest.mark.parametrize("place", range(len(CELLS)), ids=[f"{row.fault}-{words.name}-{'stream' if s else 'whole'}" for row, words, s in CELLS])
def test_cell(bench: tuple[Gateway, list[Site]], place: int) -> None:
    """The client gets what the table says, in its dialect; the attempt is booked once, and never for less than nothing."""
    gateway, sites = bench
    (row, words, streamed), site = CELLS[place], sites[place]
    site.says(row.script(words))
    asks = {"stream_options": {"include_usage": True}} if words.name == "chat" and streamed else {}
    answer = gateway.chat(words.body(site.model, stream=streamed, **asks), path=words.path)
    if row.status:
        assert answer.status_code in row.status, answer.text
        if answer.status_code >= 400:
            assert answer.json()["error"]["message"]
            assert (answer.json().get("type") == "error") == (words.name == "messages")
            assert answer.headers.get("x-should-retry") == "false" or answer.status_code in (400, 404, 413, 422)
        if row.retry_after is not None:
            assert answer.headers["retry-after"] == row.retry_after
        if row.fault.startswith("finish"):
            assert answer.content.endswith(words.end)
    else:
        assert answer.status_code == 200
        assert answer.content.startswith(b"".join(words.opening)[:60])
        assert answer.content.count(b'"error"') >= 1
        assert words.end not in answer.content
    [call] = gateway.booked(site)
    [attempt] = call["attempts"]
    assert attempt["status"] in row.booked
    cost = attempt["cost_usd"]
    assert (UNKNOWN if cost is None else PRICED if float(cost) > 0 else ZERO) in row.cost
    assert all(attempt["tokens"][name] is None or attempt["tokens"][name] >= 0 for name in ("uncached", "cache_read", "output"))
    assert len(site.requests) == (0 if row.fault == "refused" else 1)
