"""The engine's HTTP face: OpenAI chat, models, tokenize, health, load and metrics, as a small ASGI app on uvicorn.

Plain ASGI, because two things matter that frameworks put layers over: each token leaves when it comes, and a client
that hangs up is noticed at once, also before the first token, so that its blocks are free for others.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from inference.answer import ChatTeller, Teller, frame
from inference.ask import Delta, QueueFull, Stopped
from inference.blocks import BLOCK, AllBlocksCleared, BlockPool, BlockStored, Event
from inference.chat import encode_prompt, read_chat
from inference.completions import CompletionTeller, read_completion
from inference.engine import Engine, Stream
from inference.parameters import ApiError, Requested, bad
from inference.scheduler import FAST, STANDARD

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Write = Callable[[bytes], None]
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)
_MOST_BODY = 16 << 20
_EVENTS_EVERY_S = 0.05
_EVENTS_A_WRITE = 500
_SILENT_S = 15.0
_JSON = (b"content-type", b"application/json")
WRITE = "tollway.write"


class Protocol(HttpToolsProtocol):
    """uvicorn's, with an extension: writes a piece of an answer that has begun, without a coroutine for it.

    What a slow reader leaves lies in the transport: an answer is no longer than the context.
    """

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {WRITE: self._write}  # type: ignore[dict-item]

    def _write(self, data: bytes) -> None:
        if data and not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))


@dataclass(frozen=True, slots=True)
class Served:
    """What is served under which name; `facts` are told by /health."""

    engine: Engine
    name: str
    fingerprint: str
    created: int
    facts: dict[str, Any]


class App:
    """The ASGI callable."""

    def __init__(self, served: Served) -> None:
        self.served, self.engine = served, served.engine
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): partial(self._generate, read_chat, ChatTeller),
            ("POST", "/v1/completions"): partial(self._generate, read_completion, CompletionTeller),
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/reset_prefix_cache"): self._reset,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/kv_events"): self._kv_events,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        method, path = scope["method"], scope["path"]
        route = self._routes.get(("GET" if method == "HEAD" else method, path))
        try:
            if route is not None:
                await route(scope, receive, send)
            elif path.startswith("/v1/models/") and method == "GET":
                self._check_model(path.removeprefix("/v1/models/"))
                await _reply(send, 200, self._model())
            else:
                known = any(path == other for _, other in self._routes)
                raise ApiError(405 if known else 404, f"{method} {path} is not served", code="unknown_url")
        except ApiError as error:
            headers = [(b"retry-after", str(error.retry_after).encode())] if error.retry_after else []
            await _reply(send, error.status, error.body(), headers)

    async def _generate(
        self, read: Callable[..., Requested], told: Callable[..., Teller], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Read a body, off the loop, and tell what the model makes of it."""
        body, served = await _read_json(receive), self.served
        self._check_model(body.get("model"))
        request = await asyncio.to_thread(read, body, self.engine.tokenizer, self.engine.context)
        teller = told(request, served.name, served.fingerprint, self.engine.tokenizer)
        stream = self._submit(request.ask, teller.id)
        watcher = asyncio.create_task(_abort_when_gone(receive, stream))
        try:
            if request.stream:
                await _tell(stream, teller, send, scope["extensions"][WRITE])
            else:
                await _tell_whole(stream, teller, send)
        finally:
            watcher.cancel()
            stream.abort()

    def _submit(self, ask: Any, name: str) -> Stream:
        try:
            return self.engine.submit(ask, name)
        except QueueFull as full:
            error = ApiError(503, f"The engine is busy: {full}. Try again later.", code="queue_full")
            error.retry_after = full.retry_after
            raise error from full
        except Stopped as stopped:
            raise ApiError(503, "The engine is shutting down.", code="shutting_down") from stopped

    def _check_model(self, name: object) -> None:
        if name is None:
            raise bad("model is missing", "model")
        if name != self.served.name:
            raise ApiError(404, f"The model {name!r} does not exist.", param="model", code="model_not_found")

    async def _tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read_json(receive)
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            ids = await asyncio.to_thread(self.engine.tokenizer.encode, prompt)
        else:
            ids = await asyncio.to_thread(encode_prompt, body, self.engine.tokenizer)
        await _reply(send, 200, {"count": len(ids), "max_model_len": self.engine.context, "tokens": ids})

    async def _reset(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.engine.reset_prefix_cache()
        await _reply(send, 200, {"status": "ok"})

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _reply(send, 200, {"object": "list", "data": [self._model()]})

    def _model(self) -> dict[str, Any]:
        served = self.served
        return {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "tollway",
            "max_model_len": self.engine.context,
        }

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _reply(send, 200, {"status": "ok", "model": self.served.name, **self.served.facts})

    async def _load(self, scope: Scope, receive: Receive, send: Send) -> None:
        load = self.engine.load()
        held = load.blocks - load.free_blocks - load.cached_blocks
        lanes = {lane.name: {"running": load.running[lane.name], "waiting": load.waiting[lane.name]} for lane in _LANES}
        answer = {
            "server_load": sum(load.running.values()) + sum(load.waiting.values()),
            "num_requests_running": sum(load.running.values()),
            "num_requests_waiting": sum(load.waiting.values()),
            "num_waiting_tokens": load.waiting_tokens,
            "kv_cache_usage_perc": held / load.blocks,
            "blocks": {"total": load.blocks, "held": held, "cached": load.cached_blocks, "free": load.free_blocks},
            "spill": self._spilled(),
            "prefill_tokens_per_s": load.prefill_tokens_per_s,
            "lanes": lanes,
        }
        await _reply(send, 200, answer)

    def _spilled(self) -> dict[str, int] | None:
        spill = self.engine.storage.spill
        return None if spill is None else {"slots": spill.slots, "blocks": len(spill), "hit_tokens": spill.restored * BLOCK}

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        load = self.engine.load()
        held = load.blocks - load.free_blocks - load.cached_blocks
        tiers = [(lane, {"service_tier": lane.tier}) for lane in _LANES]
        config = {"block_size": "16", "num_gpu_blocks": str(load.blocks)}
        gauges: dict[str, tuple[str, Iterable[tuple[dict[str, str], float]]]] = {
            "num_requests_running": ("Requests running.", [(tier, load.running[lane.name]) for lane, tier in tiers]),
            "num_requests_waiting": ("Requests waiting.", [(tier, load.waiting[lane.name]) for lane, tier in tiers]),
            "num_waiting_tokens": ("Prompt tokens of waiting requests.", [({}, load.waiting_tokens)]),
            "kv_cache_usage_perc": ("Share of blocks that requests hold, 0 to 1.", [({}, held / load.blocks)]),
            "kv_cache_cached_blocks": ("Idle blocks that can be hit.", [({}, load.cached_blocks)]),
            "kv_spill_blocks": ("Blocks in the spill.", [({}, (self._spilled() or {}).get("blocks", 0))]),
            "cache_config_info": ("The cache's shape.", [(config, 1)]),
        }
        text = self.engine.tally.metrics.render(gauges, self.served.name).encode()
        await _start(send, 200, [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")])
        await send({"type": "http.response.body", "body": text})

    async def _kv_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cached blocks as they come and go, in vLLM's words; whoever is new or too late is told the present content."""
        pool = self.engine.storage.pool
        last = dict(scope["headers"]).get(b"last-event-id", b"")
        sequence = int(last) + 1 if last.isdigit() and len(last) < 20 else -1
        gone, said = asyncio.create_task(_gone(receive)), time.monotonic()
        await _start(send, 200, [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")])
        try:
            while not gone.done():
                events = await self.engine.between_steps(partial(_news, pool, sequence))
                for start in range(0, len(events), _EVENTS_A_WRITE):
                    data = b"".join(_event_frame(event) for event in events[start : start + _EVENTS_A_WRITE])
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                now = time.monotonic()
                if events:
                    sequence, said = events[-1].sequence + 1, now
                elif now - said > _SILENT_S:
                    await send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
                    said = now
                await asyncio.wait([gone], timeout=_EVENTS_EVERY_S)
        finally:
            gone.cancel()


_LANES = (FAST, STANDARD)
_EARLY = ("abort", "error")


async def _tell(stream: Stream, teller: Teller, send: Send, write: Write) -> None:
    """Server-sent events; one write for each delta, as it comes."""
    first = await stream.next()
    if first.reason in _EARLY:
        raise _early_end(first)

    def tell(delta: Delta) -> None:
        if data := frame(_early_end(delta).body()) if delta.reason in _EARLY else teller.frames(delta):
            write(data)

    await _start(send, 200, [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")])
    write(b"".join([*map(frame, teller.opening()), teller.frames(first)]))
    if first.reason is None:
        await stream.pour(tell)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _tell_whole(stream: Stream, teller: Teller, send: Send) -> None:
    async for delta in stream:
        if delta.reason in _EARLY:
            raise _early_end(delta)
        teller.add(delta)
        if delta.reason is not None:
            await _reply(send, 200, teller.body(delta))


def _early_end(delta: Delta) -> ApiError:
    if delta.reason == "abort":
        return ApiError(503, "The request was aborted.", code="aborted")
    return ApiError(500, "The engine failed on this request.", code="engine_error")


async def _abort_when_gone(receive: Receive, stream: Stream) -> None:
    await _gone(receive)
    stream.abort()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _news(pool: BlockPool, sequence: int) -> list[Event]:
    events = pool.since(sequence) if sequence >= 0 else None
    return pool.snapshot() if events is None else events


def _event_frame(event: Event) -> bytes:
    """One event with its number, hashes as the low 64 bits like vLLM's."""
    body: dict[str, Any] = {"type": type(event).__name__}
    if isinstance(event, BlockStored):
        body |= {
            "block_hashes": [_short(event.block_hash)],
            "parent_block_hash": _short(event.parent_hash),
            "token_ids": event.tokens,
            "block_size": BLOCK,
            "medium": "CPU",
        }
    elif not isinstance(event, AllBlocksCleared):
        body |= {"block_hashes": [_short(event.block_hash)], "medium": "CPU"}
    return b"id: %d\ndata: %s\n\n" % (event.sequence, orjson.dumps(body))


def _short(block_hash: bytes) -> int:
    return int.from_bytes(block_hash[-8:], "big")


async def _read_json(receive: Receive) -> dict[str, Any]:
    data = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "The client left.")
        data += message.get("body", b"")
        more = message.get("more_body", False)
        if len(data) > _MOST_BODY:
            raise ApiError(413, f"The body is bigger than {_MOST_BODY} bytes.", code="body_too_large")
    try:
        body = msgspec.json.decode(bytes(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(f"The body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise bad("The body must be a JSON object.", code="invalid_json")
    return body


async def _start(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _reply(send: Send, status: int, body: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    data = orjson.dumps(body)
    await _start(send, status, [_JSON, (b"content-length", str(len(data)).encode()), *headers])
    await send({"type": "http.response.body", "body": data})
