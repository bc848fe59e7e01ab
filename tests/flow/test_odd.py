"""Odd requests at every path: none gives a 5xx of ours, a stack trace or a hang, and each error is in the caller's shape (C15).

`TOLLWAY_ODD=20000` sends so many mutated bodies.
"""
from __future__ import annotations

import gzip
import json
import os
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.build import PLAIN, Process, backend, chat_answer, chat_body, messages_body
from tests.upstream import Site, Upstream, whole

MUTANTS = int(os.environ.get("TOLLWAY_ODD", 150))
pytestmark = pytest.mark.timeout(600 + MUTANTS // 20)

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, -(2**63), 10**400, 1.5, -0.0, 1e308, "", "x", "\0", "\ud800", "💥" * 50, "a" * 100_000,
    [], [None], [[]], [[[[[[]]]]]], {}, {"": {}}, {"x": None}, {"type": "text"}, [{"type": "no-such"}], [{"role": "user"}], ["x"] * 500,
]  # fmt: skip
RAW = [b"NaN", b"Infinity", b"-Infinity", b"01", b"1e999", b"1e-999", b"+1", b"0x10", b".5", b"'x'", b"tru", b'"\\ud800"', b'"\\u00"', b'"\xff"']
"""JSON that is none, or not quite."""
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
FIELDS = {
    CHAT: (
        "model", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "n", "tools", "tool_choice", "temperature",
        "stop", "user", "service_tier", "metadata", "response_format", "logit_bias", "prompt_cache_key", "reasoning_effort", "modalities",
    ),
    MESSAGES: (
        "model", "messages", "max_tokens", "stream", "system", "tools", "tool_choice", "stop_sequences", "metadata", "thinking",
        "service_tier", "cache_control",
    ),
    RESPONSES: ("model", "input", "instructions", "max_output_tokens", "stream", "tools", "previous_response_id", "background", "store"),
    "/v1/embeddings": ("model", "input", "encoding_format", "dimensions"),
    "/v1/messages/count_tokens": ("model", "messages", "system", "tools"),
}  # fmt: skip
WORDS = [
    "", "%", "%00", "%ff", "%zz", "%F0%9F%92%A5", "nan", "inf", "-inf", "1e999", "9" * 400, "-1", "0", "x" * 5_000, "2026-13-45",
    "0000-00-00", "9999-12-31", "2026-01-01T00:00:00+99:99", "-9999d", "99999999999d", "1e9d", "a,b,,c", ",", "team'--", "' OR 1=1 --", "../../etc",
    "Europe/Nowhere", "../UTC", "/etc/passwd", "%2e%2e%2f", "[]", "{}", "null", "true", "model," * 500,
]  # fmt: skip
QUERIES = ("report", "by", "since", "until", "tz", "model", "team", "key", "limit", "of", "run", "tag:x", "nonsense", "")
ADMIN = {
    "/tollway/admin/keys": {"team": "plain", "name": "n", "role": "member", "project": "p", "expires_us": 1, "budget": {"limit_nanos": 1}, "limits": {"models": ["m"]}, "user_id": "u"},
    "/tollway/admin/rerate": {"from": "2026-01-01", "to": "2026-01-02", "tz": "UTC", "team": "t", "model": "m", "dry_run": True},
    "/tollway/admin/reconcile": {"provider": "openai", "text": "{}", "name": "f.json"},
    "/tollway/runs/r/subgoals/s": {"passed": True, "evidence": "e"},
    "/tollway/admin/users": {"issuer": "i", "subject": "s", "name": "n", "admin": False},
    "/tollway/admin/backends": {"url": "http://x"},
}  # fmt: skip


class Line:
    """Requests on one socket, opened anew where the gateway closes it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sock: socket.socket | None = None

    def send(self, raw: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status 0: it was closed without a word."""
        if self._sock is None:
            self._sock = socket.create_connection(("127.0.0.1", self._process.port), 10)
        try:
            self._sock.settimeout(60)
            self._sock.sendall(raw)
            return self._read(self._sock)
        except (ConnectionError, BrokenPipeError):
            self.close()
            return 0, {}, b""

    def _read(self, sock: socket.socket) -> tuple[int, dict[str, str], bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := sock.recv(65_536)):
                raise ConnectionError
            data += more
        if data.startswith(b"HTTP/1.1 100"):
            data = data.partition(b"\r\n\r\n")[2]
            while b"\r\n\r\n" not in data:
                if not (more := sock.recv(65_536)):
                    raise ConnectionError
                data += more
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "content-length" in headers:
            while len(body) < int(headers["content-length"]):
                if not (more := sock.recv(65_536)):
                    raise ConnectionError
                body += more
            body = body[: int(headers["content-length"])]
        else:
            while not body.endswith(b"0\r\n\r\n"):
                if not (more := sock.recv(65_536)):
                    raise ConnectionError
                body += more
        if headers.get("connection") == "close" or "content-length" not in headers:
            self.close()
        return int(first.split(" ")[1]), headers, body

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


@pytest.fixture(scope="module")
def site(upstream: Upstream) -> Site:
    site = upstream.site("odd")
    site.says(whole(chat_answer()))
    return site


@pytest.fixture(scope="module")
def process(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    config = {"backends": {"b": backend(site, speaks=["chat", "responses", "embeddings"])}}
    budget = {**PLAIN, "budgets": [{"name": "cap", "limit_usd": 1000}]}
    with Process(tmp_path_factory.mktemp("odd"), config, {"plain": budget}) as process:
        yield process
        assert "Traceback" not in process.text()
        held = process.ask("GET", "/tollway/admin/budgets").json()
        assert not [row for row in held if row["held_nanos"]]


@pytest.fixture
def line(process: Process) -> Iterator[Line]:
    line = Line(process)
    yield line
    line.close()
    assert process.process.alive


def request(key: str, path: str, body: bytes = b"", method: str = "POST", *lines: str) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "host: gw", f"authorization: Bearer {key}", *lines]
    head += ["content-type: application/json", f"content-length: {len(body)}"] if method in ("POST", "PATCH", "PUT") else []
    return "\r\n".join([*head, "", ""]).encode("latin-1", "replace") + body


def check(sent: bytes, got: tuple[int, dict[str, str], bytes]) -> None:
    """No 5xx of ours; errors are JSON and say something. 502 is of the scripted server, which answers everything alike."""
    status, _, body = got
    assert status < 500 or status == 502, (status, sent[:600], body[:300])
    if status >= 400:
        error = json.loads(body)["error"]
        assert error["message"], sent[:300]
        assert "Traceback" not in error["message"]


def good(path: str, model: str) -> dict[str, Any]:
    if path.startswith(MESSAGES):
        return messages_body(model)
    return {"model": model, "input": "hi"} if path in (RESPONSES, "/v1/embeddings") else chat_body(model)


@pytest.mark.parametrize("path", FIELDS)
def test_any_value_at_any_field(line: Line, process: Process, site: Site, path: str) -> None:
    """Wrong types, huge and odd numbers, surrogates, nesting; JSON that is none; a key twice."""
    key, chance = process.key(), random.Random(path)
    for name in FIELDS[path]:
        bodies = [json.dumps({**good(path, site.model), name: value}).encode() for value in chance.sample(ODD, 12)]
        text = json.dumps(good(path, site.model)).encode()[:-1]
        bodies += [text + b', "%b": %b}' % (name.encode(), raw) for raw in chance.sample(RAW, 5)]
        for body in bodies:
            sent = request(key, path, body)
            check(sent, line.send(sent))


@pytest.mark.parametrize("path", ADMIN)
def test_any_value_at_any_field_of_the_operator(line: Line, process: Process, path: str) -> None:
    """As an admin, for whom all of it is read."""
    fields = ADMIN[path]
    for name in [*fields, "unknown"]:
        for value in ODD:
            sent = request(process.admin_key, path, json.dumps({**fields, name: value}).encode())
            check(sent, line.send(sent))
    for raw in [b"", b"[]", b"null", b"{", b'{"team": NaN}', b"\xff\xfe", b"[" * 3_000, b'{"a":' * 3_000, *RAW]:
        sent = request(process.admin_key, path, raw)
        check(sent, line.send(sent))


def test_any_word_in_any_query(line: Line, process: Process) -> None:
    """Of usage, runs, calls, keys, prices and the audit trail."""
    for path in ("/tollway/usage", "/tollway/admin/audit", "/tollway/admin/prices", "/tollway/admin/keys"):
        for name in QUERIES if path.endswith("usage") else ("limit", "before_us", "model", "team"):
            for word in WORDS:
                sent = request(process.admin_key, f"{path}?{name}={word.replace(' ', '%20')}", b"", "GET")
                check(sent, line.send(sent))
    for word in WORDS:
        for path in ("/tollway/calls/", "/tollway/runs/", "/v1/models/", "/tollway/admin/keys/", "/v1/responses/", "/v1/batches/", "/v1/files/"):
            for method in ("GET", "DELETE", "PATCH"):
                sent = request(process.admin_key, path + word.replace(" ", "%20"), b"{}" if method == "PATCH" else b"", method)
                check(sent, line.send(sent))


HEADERS = [
    "x-tollway-deadline-ms: \xb2", "x-tollway-deadline-ms: NaN", "x-tollway-deadline-ms: -1", "x-tollway-deadline-ms: 1e400", "x-tollway-deadline-ms: " + "9" * 400,
    "x-tollway-class: \x01", "x-tollway-class: " + "x" * 8_000, "x-tollway-run: \xff\xfe", "x-tollway-run: " + "r" * 8_000, "x-tollway-tags: ===,,,=",
    "x-tollway-tags: " + ",".join(f"k{n}=v" for n in range(900)), "x-tollway-bypass: everything", "x-stainless-read-timeout: inf",
    "x-stainless-read-timeout: -5", "x-stainless-retry-count: many", "x-stainless-retry-count: " + "9" * 300, "content-encoding: br",
    "content-encoding: gzip, gzip", "content-encoding: zstd", "content-encoding: \t", "content-type: text/plain", "content-type: application/json; charset=utf-16",
    "accept: \x7f", "accept-encoding: gzip;q=nan", "expect: 100-continue", "expect: nothing", "idempotency-key: ", "idempotency-key: " + "i" * 5_000,
    "anthropic-version: \x00", "authorization: Basic \x80", "connection: keep-alive, x, upgrade", "upgrade: h2c", "te: trailers, deflate",
    "transfer-encoding: chunked", "transfer-encoding: identity", "content-length: 5", "content-length: -1", "content-length: 0x10",
    "host: evil", "forwarded: for=unknown;by=", "x-forwarded-for: " + "1.1.1.1," * 500, "traceparent: 00-zz", ": no name", "no colon", " folded: x", "x\tx: y",
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, "/tollway/usage", "/v1/models"])
def test_any_header(line: Line, process: Process, site: Site, path: str) -> None:
    """Read, ignored or refused, never stumbled over; a second `content-length` or an impossible one ends the connection."""
    body = b"" if path in ("/tollway/usage", "/v1/models") else json.dumps(good(path, site.model)).encode()
    for header in HEADERS:
        line.close()
        sent = request(process.key(), path, body, "POST" if body else "GET", header)
        try:
            status, headers, answer = line.send(sent)
        except TimeoutError:
            raise AssertionError(f"{path}: no answer with {header[:80]!r}") from None
        if status:
            check(sent, (status, headers, answer))


CHUNKS = [
    b"zz\r\n{}\r\n0\r\n\r\n", b"-2\r\n{}\r\n0\r\n\r\n", b"2;x=" + b"y" * 20_000 + b"\r\n{}\r\n0\r\n\r\n", b"0\r\n\r\n", b"2\r\n{}0\r\n\r\n",
    b"ffffffffffffffff\r\n{}", b"2\n{}\n0\n\n", b"2\r\n{}\r\n0\r\nx: y\r\ncontent-length: 3\r\n\r\n", b"00000000000000002\r\n{}\r\n0\r\n\r\n",
    b"2 \r\n{}\r\n0\r\n\r\n", b"\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_odd_chunks(line: Line, process: Process, path: str) -> None:
    """A body in pieces that are none is 400, or the connection ends; the next caller is served."""
    head = f"POST {path} HTTP/1.1\r\nhost: gw\r\nauthorization: Bearer {process.key()}\r\ncontent-type: application/json\r\n"
    for chunk in CHUNKS:
        line.close()
        sent = head.encode() + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + chunk
        sock = socket.create_connection(("127.0.0.1", process.port), 10)
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(60)
        answer = b""
        try:
            while more := sock.recv(65_536):
                answer += more
        except ConnectionError:
            pass
        sock.close()
        assert not answer or b"400" <= answer[9:12] < b"500", (chunk[:60], answer[:200])
    assert line.send(request(process.key(), "/v1/models", b"", "GET"))[0] == 200


def test_mutated_bodies(line: Line, process: Process, site: Site) -> None:
    """Good bodies with bytes changed, cut, doubled or packed."""
    chance, key = random.Random(5), process.key()
    for n in range(MUTANTS):
        path = chance.choice(list(FIELDS))
        body = bytearray(json.dumps({**good(path, site.model), "metadata": {"é": [1, 2.5, None, "x\\"]}}).encode())
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(body))
            match chance.randrange(4):
                case 0:
                    body[at] = chance.randrange(256)
                case 1:
                    del body[at : at + chance.randrange(8)]
                case 2:
                    body[at:at] = body[chance.randrange(len(body)) :][:12]
                case _:
                    body[at:at] = chance.choice([b"\\u0000", b"\\ud83d", b"[", b"{", b'"', b"\xc3", b"1e400", b"\xef\xbb\xbf"])
        packed = n % 7 == 0
        sent = request(key, path, gzip.compress(bytes(body)) if packed else bytes(body), "POST", *(["content-encoding: gzip"] if packed else []))
        check(sent, line.send(sent))
