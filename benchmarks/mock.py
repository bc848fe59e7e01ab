"""A model server for measuring what stands in front of it: `python -m benchmarks.mock PORT`.

A whole answer comes at once. A stream has `TOKENS` chunks, the first after `FIRST_S`, then one every `GAP_S`; each carries
the time at which it was written, so that whoever reads it knows how long it was on its way.
"""
from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress

import httptools

_ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-5.5","service_tier":"default","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"' + b"toll road " * 40 + b'"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":200,"completion_tokens":80,"total_tokens":280,"prompt_tokens_details":{"cached_tokens":128}}}'
)
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_ANSWER) + _ANSWER


TOKENS, FIRST_S, GAP_S = 64, 0.02, 0.005
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-5.5","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":"%d "},"finish_reason":null}]}\n\n'
)
_LAST = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-5.5","choices":[{"index":0,'
    b'"delta":{},"finish_reason":"stop"}]}\n\ndata: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,'
    b'"model":"gpt-5.5","choices":[],"usage":{"prompt_tokens":200,"completion_tokens":%d,"total_tokens":%d}}\n\n'
    b"data: [DONE]\n\n"
) % (TOKENS, 200 + TOKENS)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Server(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._stream = False
        self._left = 0

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._stream = False

    def on_body(self, data: bytes) -> None:
        self._stream = self._stream or b'"stream": true' in data or b'"stream":true' in data

    def on_message_complete(self) -> None:
        if not self._stream:
            self._transport.write(_WHOLE)  # type: ignore[attr-defined]
            return
        self._left = TOKENS
        asyncio.get_running_loop().call_later(FIRST_S, self._next, _HEAD)

    def _next(self, head: bytes = b"") -> None:
        if self._transport.is_closing():
            return
        if self._left == 0:
            self._transport.write(_framed(_LAST) + b"0\r\n\r\n")  # type: ignore[attr-defined]
            return
        self._left -= 1
        self._transport.write(head + _framed(_CHUNK % time.monotonic_ns()))  # type: ignore[attr-defined]
        asyncio.get_running_loop().call_later(GAP_S, self._next)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1])))
