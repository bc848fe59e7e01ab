"""HTTP, as far as the engine needs more than uvicorn has: bodies of JSON, and pieces of an answer written as they come.

Plain ASGI, because two things matter that frameworks put layers over: each token leaves when it comes, and a client
that hangs up is noticed at once, also before the first token, so that its blocks are free for others.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec
import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from inference.parameters import ApiError, bad

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Write = Callable[[bytes], None]

WRITE = "tollway.write"
_MOST_BODY = 16 << 20
_JSON = (b"content-type", b"application/json")


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


async def gone(receive: Receive) -> None:
    """Until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_json(receive: Receive) -> dict[str, Any]:
    """A request's body. Raises `ApiError`."""
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


async def start(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """The head of an answer."""
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})


async def reply(send: Send, status: int, body: Any, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """A whole answer."""
    data = orjson.dumps(body)
    await start(send, status, [_JSON, (b"content-length", str(len(data)).encode()), *headers])
    await send({"type": "http.response.body", "body": data})
