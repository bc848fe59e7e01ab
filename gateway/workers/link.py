"""Calls between two of our own processes over one socket pair: length, then `[kind, id, name, body]` in MessagePack.

Both sides may ask. Arguments and results are typed by the annotations of the method that serves them. What is said within one
turn of the loop leaves in one write, so a busy worker pays for few system calls.
"""
from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, get_type_hints

import msgspec

from gateway.core import errors

_ASK, _ANSWER, _ERROR, _TELL = 0, 1, 2, 3
_log = logging.getLogger("tollway.workers")


class LinkLost(ConnectionError):
    """The process at the other end is gone."""


class FarError(OSError):
    """A method failed at the other end in a way that has no class of its own here."""


class _Frame(msgspec.Struct, array_like=True):
    kind: int
    id: int
    name: str
    body: msgspec.Raw


class _Failure(msgspec.Struct, array_like=True):
    name: str
    text: str
    param: str | None = None
    retry_after_s: float | None = None
    code: str | None = None
    detail: msgspec.Raw = msgspec.Raw(b"\xc0")


@dataclass(frozen=True, slots=True)
class Method:
    """What the other side may call: a coroutine function, which gets a task, or a plain one, which is served at once and may
    give a coroutine back where it has to wait."""

    call: Callable[..., Any]
    arguments: msgspec.msgpack.Decoder[Any]


def methods(prefix: str, thing: object, at_once: Sequence[str] = ()) -> dict[str, Method]:
    """The public coroutine methods of an object, by `prefix.name`, and those of its plain ones that are named."""
    found = [pair for pair in inspect.getmembers(thing, inspect.iscoroutinefunction) if not pair[0].startswith("_")]
    found += [(name, getattr(thing, name)) for name in at_once]
    return {f"{prefix}.{name}": Method(call, _arguments(call)) for name, call in found}


def _arguments(call: Callable[..., Any]) -> msgspec.msgpack.Decoder[Any]:
    hints = get_type_hints(call)
    names = list(inspect.signature(call).parameters)
    return msgspec.msgpack.Decoder(tuple[tuple(hints[name] for name in names)] if names else tuple[()])  # type: ignore[misc]


class Stub:
    """`stub.insert(record, actor)` calls `prefix.insert` at the other end, as the class that stands there declares it."""

    def __init__(self, link: Link, prefix: str, of: type) -> None:
        for name, call in inspect.getmembers(of, inspect.iscoroutinefunction):
            if not name.startswith("_"):
                setattr(self, name, _far(link, f"{prefix}.{name}", call))


def _far(link: Link, name: str, call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    signature = inspect.signature(call)
    decoder = msgspec.msgpack.Decoder(get_type_hints(call).get("return", Any) or Any)
    count = len(signature.parameters) - 1

    async def ask(*given: Any, **named: Any) -> Any:
        if named or len(given) != count:
            bound = signature.bind(None, *given, **named)
            bound.apply_defaults()
            given = bound.args[1:] + tuple(bound.kwargs.values())
        return decoder.decode(await link.ask(name, given))

    return ask


@dataclass(frozen=True, slots=True)
class ErrorCodec:
    """An exception that travels with more than its text."""

    kind: type[Exception]
    give: Callable[[Any], Any]
    take: Callable[[str, bytes], Exception]


class Link(asyncio.Protocol):
    """One end. `serves` may be filled until the first request comes."""

    def __init__(
        self, serves: Mapping[str, Method], on_lost: Callable[[], None], codecs: Mapping[str, ErrorCodec] | None = None
    ) -> None:
        self._serves = serves
        self._on_lost = on_lost
        self._codecs = codecs or {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last_id = 0
        self._in = bytearray()
        self._out: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._encoder = msgspec.msgpack.Encoder()
        self._frames = msgspec.msgpack.Decoder(_Frame)
        self.lost = False

    async def ask(self, name: str, arguments: tuple[Any, ...]) -> msgspec.Raw:
        """Calls a method there and waits. Raises what it raised, or `LinkLost`."""
        if self.lost:
            raise LinkLost("the process at the other end is gone")
        self._last_id += 1
        answer: asyncio.Future[msgspec.Raw] = self._loop.create_future()
        self._asked[self._last_id] = answer
        self._say(_ASK, self._last_id, name, arguments)
        return await answer

    def tell(self, name: str, *arguments: Any) -> None:
        """Calls a method there, without an answer."""
        if not self.lost:
            self._say(_TELL, 0, name, arguments)

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._flush()

    def data_received(self, data: bytes) -> None:
        buffer = self._in
        buffer += data
        at = 0
        while len(buffer) - at >= 4:
            end = at + 4 + int.from_bytes(buffer[at : at + 4])
            if len(buffer) < end:
                break
            self._take(self._frames.decode(bytes(buffer[at + 4 : end])))
            at = end
        if at:
            del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(LinkLost("the process at the other end is gone"))
        self._on_lost()

    # inside

    def _say(self, kind: int, number: int, name: str, body: Any) -> None:
        packed = self._encoder.encode((kind, number, name, body))
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(len(packed).to_bytes(4))
        self._out.append(packed)

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def _take(self, frame: _Frame) -> None:
        if frame.kind in (_ASK, _TELL):
            self._begin(frame)
            return
        answer = self._asked.pop(frame.id, None)
        if answer is None or answer.done():
            return
        if frame.kind == _ANSWER:
            answer.set_result(frame.body)
        else:
            answer.set_exception(self._error(msgspec.msgpack.decode(frame.body, type=_Failure)))

    def _begin(self, frame: _Frame) -> None:
        try:
            method = self._serves[frame.name]
            result = method.call(*method.arguments.decode(frame.body))
        except Exception as error:
            self._failed(frame, error)
            return
        if not isinstance(result, CoroutineType):
            self._served(frame, result)
            return
        task = self._loop.create_task(self._wait_for(frame, result))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_for(self, frame: _Frame, work: CoroutineType[Any, Any, Any]) -> None:
        try:
            result = await work
        except Exception as error:
            self._failed(frame, error)
        else:
            self._served(frame, result)

    def _served(self, frame: _Frame, result: Any) -> None:
        if frame.kind == _ASK:
            self._say(_ANSWER, frame.id, "", result)

    def _failed(self, frame: _Frame, error: Exception) -> None:
        if frame.kind == _ASK:
            self._say(_ERROR, frame.id, "", self._failure(error))
        else:
            _log.error("%s failed, and nobody waits for its answer: %s", frame.name, error)

    def _failure(self, error: Exception) -> _Failure:
        for name, codec in self._codecs.items():
            if isinstance(error, codec.kind):
                return _Failure(name, str(error), detail=msgspec.Raw(self._encoder.encode(codec.give(error))))
        if isinstance(error, errors.GatewayError):
            return _Failure(type(error).__name__, str(error), error.param, error.retry_after_s, error.code)
        return _Failure("", f"{type(error).__name__}: {error}")

    def _error(self, failure: _Failure) -> Exception:
        if failure.name in self._codecs:
            return self._codecs[failure.name].take(failure.text, bytes(failure.detail))
        kind = getattr(errors, failure.name, None) if failure.name else None
        if kind is None:
            return FarError(failure.text)
        error: errors.GatewayError = kind(failure.text, param=failure.param, retry_after_s=failure.retry_after_s)
        if failure.code is not None:
            error.code = failure.code
        return error


async def connect(
    sock: socket.socket, serves: Mapping[str, Method], on_lost: Callable[[], None], codecs: Mapping[str, ErrorCodec]
) -> Link:
    """A link over one end of a socket pair."""
    sock.setblocking(False)
    _, link = await asyncio.get_running_loop().create_connection(lambda: Link(serves, on_lost, codecs), sock=sock)
    return link
