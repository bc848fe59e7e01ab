"""What travels to a backend and what comes back: headers by rule, waits, packed bodies."""
from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.backends.fleet import Fleet
from gateway.backends.http import RawHeaders, Stop, Take
from gateway.backends.upstream import Body, incoming, outgoing, read, retry_after_s
from gateway.core.errors import UpstreamError
from gateway.settings import resolve
from gateway.settings_file import File
from router_policies.types import Rates


@dataclass
class Said:
    """An answer that is there already."""

    headers: RawHeaders = ()
    parts: Sequence[bytes] = ()
    status: int = 200
    read_timeout_s: float | None = None
    closed: bool = field(default=False)

    async def pump(self, take: Take) -> None:
        for part in self.parts:
            if not take(part):
                return

    def whole(self) -> bytes | None:
        return None

    async def aclose(self) -> None:
        self.closed = True


def target(dialect: str = "openai", **fields: Any) -> Any:
    """The only lane of a backend with a key."""
    backend = {"dialect": dialect, "url": "https://api.example/v1", "models": ["m"], "key": "env:K", **fields}
    settings = resolve(File.model_validate({"backends": {"b": backend}}), __import__("pathlib").Path("/tmp"), {"K": "sk-1"})
    fleet = Fleet(settings, lambda *_: Rates())
    api = {"openai": "openai_chat", "anthropic": "anthropic_messages"}[dialect]
    return fleet.road("b/standard", api)


@pytest.mark.parametrize("name", [
    "authorization", "x-api-key", "api-key", "cookie", "host", "forwarded", "x-forwarded-for", "x-forwarded-user", "x-real-ip",
    "via", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "content-encoding",
    "proxy-authorization", "x-tollway-run", "x-tollway-class", "accept-encoding", "expect", "origin", "referer", "sec-fetch-mode",
    "openai-organization", "x-hop",
])  # fmt: skip
def test_what_stays_here(name: str) -> None:
    """Credentials, addresses, hop-by-hop headers and those named by Connection, our own switches."""
    sent = outgoing(target(), {name: "secret", "connection": "X-Hop, close"}, same_dialect=True)
    assert "secret" not in str(sent)


@pytest.mark.parametrize("name", ["openai-beta", "anthropic-beta", "user-agent", "x-stainless-os", "idempotency-key", "x-custom", "traceparent"])
def test_what_travels(name: str) -> None:
    """All else, where the dialect is the same; nothing where it is translated."""
    pair = (name.encode(), b"v")
    assert pair in outgoing(target(), {name: "v"}, same_dialect=True)
    assert pair not in outgoing(target(), {name: "v"}, same_dialect=False)


@pytest.mark.parametrize(("dialect", "expected"), [
    ("openai", {b"authorization": b"Bearer sk-1"}),
    ("anthropic", {b"x-api-key": b"sk-1", b"anthropic-version": b"2023-06-01"}),
])  # fmt: skip
def test_the_backends_own_credential_goes_out(dialect: str, expected: dict[bytes, bytes]) -> None:
    sent = dict(outgoing(target(dialect), {}, same_dialect=True))
    assert sent.items() >= expected.items()
    assert (sent[b"content-type"], sent[b"accept-encoding"]) == (b"application/json", b"identity")
    assert len({b"authorization", b"x-api-key"} & sent.keys()) == 1


def test_each_header_goes_out_once() -> None:
    """A client's version wins over ours and is not doubled."""
    sent = outgoing(target("anthropic"), {"anthropic-version": "2099-01-01", "content-type": "application/json"}, same_dialect=True)
    names = [name for name, _ in sent]
    assert len(names) == len(set(names))
    assert (b"anthropic-version", b"2099-01-01") in sent


@pytest.mark.parametrize(("name", "value", "back"), [
    (b"content-type", b"application/json", True), (b"x-request-id", b"r", True), (b"request-id", b"r", True),
    (b"x-ratelimit-limit-tokens", b"5", True), (b"anthropic-ratelimit-requests-limit", b"5", True), (b"openai-processing-ms", b"5", True),
    (b"retry-after", b"7", True), (b"set-cookie", b"a=b", False), (b"server", b"nginx", False), (b"location", b"/x", False),
    (b"x-tollway-call", b"forged", False), (b"content-length", b"5", False), (b"transfer-encoding", b"chunked", False),
    (b"x-request-id", b"a\r\nset-cookie: x", False), (b"x-request-id", b"\x1b[2J", False), (b"strict-transport-security", b"x", False),
])  # fmt: skip
def test_what_comes_back(name: bytes, value: bytes, back: bool) -> None:
    """Known headers only, and none with control bytes in it."""
    assert incoming(Said(headers=[(name, value)])) == ([(name, value)] if back else [])


@pytest.mark.parametrize(("headers", "seconds", "told"), [
    ([(b"retry-after", b"7")], 7.0, b"7"),
    ([(b"retry-after", b"0")], 0.0, b"0"),
    ([(b"retry-after", b"1.5")], 1.5, b"2"),
    ([(b"retry-after-ms", b"1500"), (b"retry-after", b"2")], 1.5, b"2"),
    ([(b"retry-after", b"999999999")], 999999999.0, b"3600"),
    ([(b"retry-after", b"Wed, 21 Oct 2015 07:28:00 GMT")], 0.0, b"1"),
    ([(b"retry-after", b"soon")], None, b"1"),
    ([(b"retry-after", b"nan")], None, b"1"),
    ([(b"retry-after", b"inf")], None, b"1"),
    ([(b"retry-after", b"1e999")], None, b"1"),
    ([(b"retry-after", "٣".encode())], None, b"1"),
    ([(b"retry-after", b"-5")], 0.0, b"1"),
    ([], None, None),
])  # fmt: skip
def test_waits_are_read_and_bounded(headers: RawHeaders, seconds: float | None, told: bytes | None) -> None:
    """Seconds, milliseconds or a date; the client is never told of more than an hour."""
    answer = Said(headers=headers)
    assert retry_after_s(answer) == seconds
    assert dict(incoming(answer)).get(b"retry-after") == told


def test_a_date_far_away_is_an_hour() -> None:
    assert dict(incoming(Said(headers=[(b"retry-after", b"Wed, 21 Oct 2099 07:28:00 GMT")])))[b"retry-after"] == b"3600"


@pytest.mark.parametrize(("encoding", "pack"), [
    (b"identity", lambda data: data), (b"", lambda data: data), (b"gzip", gzip.compress), (b"deflate", zlib.compress),
])  # fmt: skip
async def test_a_packed_body_is_unpacked(encoding: bytes, pack: Any) -> None:
    """Also where it comes byte by byte."""
    packed = pack(b"hello" * 1000)
    headers = [(b"content-encoding", encoding)] if encoding else []
    answer = Said(headers=headers, parts=[packed[i : i + 7] for i in range(0, len(packed), 7)])
    assert await read(answer, Stop()) == b"hello" * 1000


@pytest.mark.parametrize(("encoding", "packed"), [
    pytest.param(b"gzip", gzip.compress(bytes(70 << 20), 1), id="bomb"),
    pytest.param(b"gzip", b"not gzip at all", id="not gzip"),
    pytest.param(b"br", b"x", id="unknown coding"),
])  # fmt: skip
async def test_what_cannot_be_unpacked_is_an_error(encoding: bytes, packed: bytes) -> None:
    """A bomb is stopped at a hundred times its packed size, long before it is whole."""
    got: list[int] = []

    async def unpack() -> None:
        body = Body(Said(headers=[(b"content-encoding", encoding)], parts=[packed]), Stop())
        await body.pump(lambda chunk: got.append(len(chunk)) is None)

    with pytest.raises(UpstreamError):
        await unpack()
    assert max(got, default=0) <= 1 << 20
    assert sum(got) <= max(100 * len(packed), 1 << 20)
