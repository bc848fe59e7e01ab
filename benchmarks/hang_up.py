"""How long after a client hangs up the model server is told, for streams and for whole answers.

    python -m benchmarks.hang_up [--calls 500] [--json]

A scripted model server and the clients are this process, the gateway is another; half of the hang-ups come in the middle of a
stream, half while nothing has been answered yet.
"""
from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import click

from benchmarks.gateway import running
from benchmarks.ports import free_port

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"gpt-5.5","choices":[{"index":0,"delta":{"content":"toll "}}]}\n\n'  # noqa: E501
_EVERY_S = 0.02


class _Server(asyncio.Protocol):
    """Streams until its peer goes, or says nothing at all; tells when a call has come and when its peer has gone."""

    def __init__(self, come: dict[bytes, asyncio.Event], gone: dict[bytes, asyncio.Future[float]]) -> None:
        self._come, self._gone = come, gone
        self._name = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        at = data.find(b'"user":"')
        if at < 0:
            return
        self._name = data[at + 8 : data.index(b'"', at + 8)]
        self._come[self._name].set()
        if b'"stream":true' in data:
            self._transport.write(_HEAD)  # type: ignore[attr-defined]
            self._stream()

    def _stream(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"%x\r\n%s\r\n" % (len(_CHUNK), _CHUNK))  # type: ignore[attr-defined]
            asyncio.get_running_loop().call_later(_EVERY_S, self._stream)

    def connection_lost(self, exc: Exception | None) -> None:
        waiting = self._gone.get(self._name)
        if waiting is not None and not waiting.done():
            waiting.set_result(time.perf_counter())


async def measure(mock_port: int, port: int, key: str, calls: int) -> list[float]:
    """Milliseconds from the client's close to the model server's notice."""
    come: dict[bytes, asyncio.Event] = {}
    gone: dict[bytes, asyncio.Future[float]] = {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Server(come, gone), "127.0.0.1", mock_port)
    times = []
    for n in range(calls):
        name, stream = f"call-{n}", n % 2 == 0
        come[name.encode()], gone[name.encode()] = asyncio.Event(), loop.create_future()
        body = json.dumps(
            {"model": "gpt-5.5", "user": name, "stream": stream, "messages": [{"role": "user", "content": "hi"}]},
            separators=(",", ":"),
        ).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n%s" % (key.encode(), len(body), body)
        )
        await come[name.encode()].wait()
        if stream:
            await reader.readuntil(b"toll ")
        writer.close()
        left = time.perf_counter()
        times.append((await asyncio.wait_for(gone[name.encode()], 30) - left) * 1e3)
    server.close()
    return times


@click.command()
@click.option("--calls", default=500, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(calls: int, as_json: bool) -> None:
    """How soon a hang-up reaches the model server."""
    with tempfile.TemporaryDirectory() as folder:
        mock_port = free_port()
        with running(Path(folder), mock_port) as door:
            cuts = quantiles(asyncio.run(measure(mock_port, door.port, door.key, calls)), n=100)
    found = {"calls": calls, "p50_ms": round(cuts[49], 2), "p95_ms": round(cuts[94], 2), "p99_ms": round(cuts[98], 2)}
    click.echo(json.dumps(found) if as_json else ", ".join(f"{name} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
