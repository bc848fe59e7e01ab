"""The simulated providers as one HTTP server: `/NAME/v1/chat/completions` and `/NAME/v1/messages`, by the clock that it is
given.

The isolation domain is the API key, so two accounts share nothing. An answer begins `delay_s` of real time after its request:
what comes in between cannot read what it writes, whatever the simulated clock says. Gemini also answers at its own address,
`/gemini/v1beta/openai`, and `/gemini/v1beta/cachedContents` makes, extends and deletes objects.
"""
from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httptools
import orjson

from benchmarks.providers import prompt, wire
from benchmarks.providers.marked import Used
from benchmarks.providers.objects import ObjectStore
from benchmarks.providers.prompt import Refused
from benchmarks.providers.rules import PROVIDERS, Cache, Provider

PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
_ALSO = {"gemini": ("/v1beta/openai/chat/completions",)}
_OBJECTS, _STORED = "v1beta/cachedContents", ("systemInstruction", "tools", "contents")
_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request as it came and as it was counted; `used` None: refused, and `error` says why."""

    provider: str
    domain: str
    at_s: float
    body: Mapping[str, Any]
    used: Used | None
    error: str = ""


class Providers:
    """All providers on one port of the loopback interface, in a thread; a context manager."""

    def __init__(self, now_s: Callable[[], float], delay_s: float = 0.0) -> None:
        self.now_s, self.delay_s = now_s, delay_s
        self.seen: list[Seen] = []
        self.objects = ObjectStore()
        self.open: set[Any] = set()
        self._answered: dict[str, Mapping[str, Any]] = {}
        """Requests by the name of their answer."""
        self._caches: dict[str, Cache] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="providers")
        self.port = 0

    def forget(self) -> None:
        """Empty caches and no records: a fresh world."""
        self._caches.clear()
        self.seen.clear()
        self._answered.clear()
        self.objects = ObjectStore()

    def url(self, provider: str) -> str:
        return f"http://127.0.0.1:{self.port}/{provider}/v1"

    def __enter__(self) -> Providers:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> int:
        self._server = await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._server.close()
        for transport in self.open:
            transport.abort()
        await asyncio.sleep(0)

    def serve(
        self, path: str, headers: Mapping[str, str], body: bytes, method: str = "POST"
    ) -> tuple[int, str, list[bytes], Used | None]:
        """Status, content type, pieces of the answer, and what to tell when it begins."""
        _, name, rest = path.split("/", 2)
        if name == "gemini" and rest.startswith(_OBJECTS):
            return self._object(method, rest.removeprefix("v1beta/").partition("?")[0], body)
        provider = PROVIDERS.get(name)
        if provider is None or f"/{rest}" not in (PATHS[provider.wire], *_ALSO.get(name, ())):
            return 404, "application/json", [wire.error("openai", f"there is nothing at {path}", 404)], None
        domain = headers.get("x-api-key") or headers.get("authorization", "")
        asked: Any = {}
        try:
            asked = orjson.loads(body)
            used = self._used(provider, domain, asked)
        except (Refused, orjson.JSONDecodeError) as error:
            self.seen.append(Seen(provider=name, domain=domain, at_s=self.now_s(), body=asked, used=None, error=str(error)))
            return 400, "application/json", [wire.error(provider.wire, str(error))], None
        self.seen.append(Seen(provider=name, domain=domain, at_s=self.now_s(), body=asked, used=used))
        answer = wire.new_id()
        kind, pieces = wire.answer(answer, name, provider.wire, asked, used, self._diagnosis(asked, used))
        self._answered[answer] = asked
        return 200, kind, pieces, used

    def _diagnosis(self, asked: Mapping[str, Any], used: Used) -> Mapping[str, Any] | None:
        earlier = (asked.get("diagnostics") or {}).get("previous_message_id")
        return None if earlier is None else wire.diagnosis(self._answered.get(earlier), asked, used)

    def _used(self, provider: Provider, domain: str, body: Mapping[str, Any]) -> Used:
        if provider.wire == "anthropic" and body.get("max_tokens") == 0:
            _may_pre_warm(body)
        cache = self._caches.setdefault(provider.name, provider.make())
        extra = body.get("extra_body") if provider.name == "gemini" else None
        named = ((extra or {}).get("google") or {}).get("cached_content")
        if named is None:
            return cache.serve(domain, body, self.now_s())
        system = any(message["role"] in ("system", "developer") for message in body["messages"])
        if system or "tools" in body or "tool_choice" in body:
            raise Refused("CachedContent can not be used with a request setting system_instruction, tools or tool_config.")
        found = self.objects.get(named, body["model"], self.now_s())
        return Used(read=found.tokens, uncached=prompt.openai(body).tokens, cached_object=named)

    def _object(self, method: str, name: str, body: bytes) -> tuple[int, str, list[bytes], Used | None]:
        try:
            found = self._made(orjson.loads(body)) if method == "POST" else self._changed(method, name, body)
        except Refused as error:
            return 400 if method == "POST" else 404, "application/json", [wire.error("openai", str(error))], None
        return 200, "application/json", [orjson.dumps(found)], None

    def _made(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        tokens = len(orjson.dumps([asked.get(name, "") for name in _STORED])) // prompt.BYTES_PER_TOKEN
        made = self.objects.create(asked["model"].removeprefix("models/"), tokens, _seconds(asked), self.now_s())
        return {"name": made.name, "model": asked["model"], "usageMetadata": {"totalTokenCount": tokens}}

    def _changed(self, method: str, name: str, body: bytes) -> Mapping[str, Any]:
        if name not in self.objects.objects:
            raise Refused("CachedContent not found (or permission denied)")
        if method == "DELETE":
            self.objects.delete(name, self.now_s())
            return {}
        self.objects.extend(name, _seconds(orjson.loads(body)), self.now_s())
        return {"name": name}


def _seconds(asked: Mapping[str, Any]) -> float:
    return float(str(asked.get("ttl", "3600s")).removesuffix("s"))


def _may_pre_warm(body: Mapping[str, Any]) -> None:
    """Anthropic's `max_tokens: 0`."""
    forced = (body.get("tool_choice") or {}).get("type") in ("any", "tool")
    thinking = (body.get("thinking") or {}).get("type") == "enabled"
    if body.get("stream") or forced or thinking or "output_config" in body:
        raise Refused("max_tokens: 0 cannot be used with streaming, thinking, structured output or a forced tool choice")


class _Connection(asyncio.Protocol):
    def __init__(self, providers: Providers) -> None:
        self._providers = providers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._providers.open.add(self._transport)
        self._parser = httptools.HttpRequestParser(self)
        self._reset()

    def connection_lost(self, exc: Exception | None) -> None:
        self._providers.open.discard(self._transport)

    def _reset(self) -> None:
        self._url, self._headers, self._body = b"", {}, bytearray()  # type: ignore[var-annotated]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        status, kind, pieces, used = self._providers.serve(
            self._url.decode(), self._headers, bytes(self._body), self._parser.get_method().decode()
        )
        self._reset()
        loop = asyncio.get_running_loop()
        if self._providers.delay_s:
            loop.call_later(self._providers.delay_s, self._answer, status, kind, pieces, used)
        else:
            self._answer(status, kind, pieces, used)

    def _answer(self, status: int, kind: str, pieces: list[bytes], used: Used | None) -> None:
        if used is not None:
            used.begun(self._providers.now_s())
        if self._transport.is_closing():
            return
        head = b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\n" % (status, _REASONS[status], kind.encode())
        if kind == "text/event-stream":
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
            self._transport.write(head + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
        else:
            self._transport.write(head + b"content-length: %d\r\n\r\n" % len(pieces[0]) + pieces[0])
