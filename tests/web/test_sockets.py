"""What the kernel tells of a connection."""
from __future__ import annotations

import socket
import sys
import time

import pytest

from gateway.web.sockets import arrived_s

_TICK_S = 0.02
"""The kernel's own clock goes in steps of some milliseconds."""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_bytes_have_come_when_they_came_and_not_when_they_are_read() -> None:
    """However long they lay there: a loop that is late takes none of a call's time for its own."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        theirs, _ = server.accept()
        with theirs:
            before_s = time.monotonic()
            client.sendall(b"x")
            after_s = time.monotonic()
            time.sleep(0.2)
            came_s = arrived_s(theirs)
            assert theirs.recv(1) == b"x"
    assert came_s is not None
    assert before_s - _TICK_S <= came_s <= after_s + _TICK_S


def test_of_what_is_no_connection_nothing_is_known() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert arrived_s(left) is None
    assert arrived_s(left) is None
    assert arrived_s(None) is None
