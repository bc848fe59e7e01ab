"""The engine's HTTP face: OpenAI chat and completions, models, tokenize, health, load and metrics, as a small ASGI app."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from inference.answer import ChatTeller, Teller, frame
from inference.ask import Delta, QueueFull, Stopped
from inference.blocks import BLOCK
from inference.chat import encode_prompt, read_chat
from inference.completions import CompletionTeller, read_completion
from inference.engine import Engine, Stream
from inference.http import WRITE, Receive, Scope, Send, Write, gone, read_json, reply, start
from inference.kv_events import follow
from inference.parameters import ApiError, Requested, bad
from inference.scheduler import FAST, STANDARD

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]


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
                await reply(send, 200, self._model())
            else:
                known = any(path == other for _, other in self._routes)
                raise ApiError(405 if known else 404, f"{method} {path} is not served", code="unknown_url")
        except ApiError as error:
            headers = [(b"retry-after", str(error.retry_after).encode())] if error.retry_after else []
            await reply(send, error.status, error.body(), headers)

    async def _generate(
        self, read: Callable[..., Requested], told: Callable[..., Teller], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Read a body, off the loop, and tell what the model makes of it."""
        body, served = await read_json(receive), self.served
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
        body = await read_json(receive)
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            ids = await asyncio.to_thread(self.engine.tokenizer.encode, prompt)
        else:
            ids = await asyncio.to_thread(encode_prompt, body, self.engine.tokenizer)
        await reply(send, 200, {"count": len(ids), "max_model_len": self.engine.context, "tokens": ids})

    async def _reset(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.engine.reset_prefix_cache()
        await reply(send, 200, {"status": "ok"})

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, {"object": "list", "data": [self._model()]})

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
        code, status = (503, "stopped") if self.engine.stopped else (200, "ok")
        await reply(send, code, {"status": status, "model": self.served.name, **self.served.facts})

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
        await reply(send, 200, answer)

    def _spilled(self) -> dict[str, int] | None:
        spill = self.engine.storage.spill
        return None if spill is None else {"slots": spill.slots, "blocks": len(spill), "hit_tokens": spill.restored * BLOCK}

    async def _kv_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        await follow(self.engine, scope, receive, send)

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
        text = self.engine.tally.metrics.render(gauges, self.served.name)
        await start(send, 200, [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")])
        await send({"type": "http.response.body", "body": text})

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

    await start(send, 200, [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")])
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
            await reply(send, 200, teller.body(delta))


def _early_end(delta: Delta) -> ApiError:
    if delta.reason == "abort":
        return ApiError(503, "The request was aborted.", code="aborted")
    return ApiError(500, "The engine failed on this request.", code="engine_error")


async def _abort_when_gone(receive: Receive, stream: Stream) -> None:
    await gone(receive)
    stream.abort()
