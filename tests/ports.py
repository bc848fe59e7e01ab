"""Ports for servers that want one by number, kept from all others until they listen there, and after they have died."""
from __future__ import annotations

import socket


def hold_port() -> socket.socket:
    """A socket on a port that is given to nobody else while it is open, but to a server that asks for that port by number.

    Connections to it are refused until then; without it a client that tries again and again may even be given it as its own.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # two such sockets share a port until one of them listens
    sock.bind(("127.0.0.1", 0))
    return sock


_held: list[socket.socket] = []


def free_port() -> int:
    """A port that stays free until somebody listens there, for as long as this process runs."""
    _held.append(hold_port())
    return int(_held[-1].getsockname()[1])
