"""A hop between a client and the gateway that writes down both directions, byte by byte."""
from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field


@dataclass
class Exchange:
    """One connection: what the client sent and what it got."""

    sent: bytearray = field(default_factory=bytearray)
    got: bytearray = field(default_factory=bytearray)


class Hop:
    """Listens on a free port and passes everything on to `port`."""

    def __init__(self, port: int) -> None:
        self.connections: list[Exchange] = []
        self._port = port
        self._threads: list[threading.Thread] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True, name="hop").start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self.connections.append(exchange := Exchange())
                thread = threading.Thread(target=_serve, args=(client, server, exchange), daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """Waits for the connections to end: the client is gone by now."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(5)

    @property
    def requests(self) -> list[bytes]:
        """Bodies of the requests with one, in order."""
        return [body for exchange in self.connections for body in bodies(bytes(exchange.sent)) if body]

    @property
    def answers(self) -> list[bytes]:
        return [body for exchange in self.connections for body in bodies(bytes(exchange.got))]


def _serve(client: socket.socket, server: socket.socket, exchange: Exchange) -> None:
    with client, server:
        back = threading.Thread(target=_copy, args=(server, client, exchange.got), daemon=True)
        back.start()
        _copy(client, server, exchange.sent)
        back.join(10)


def _copy(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            kept += data
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def bodies(data: bytes) -> list[bytes]:
    """The bodies of the HTTP/1.1 messages that stand one after the other in `data`."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])}
        if fields.get(b"transfer-encoding") == b"chunked":
            body, data = _unchunked(data)
        else:
            length = int(fields.get(b"content-length", b"0"))
            body, data = data[:length], data[length:]
        found.append(body)
    return found


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size.partition(b";")[0] or b"0", 16)
        if not length:
            return body, data.partition(b"\r\n")[2]
        body, data = body + data[:length], data[length + 2 :]
