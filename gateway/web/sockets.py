"""What the kernel knows of a connection and the event loop does not."""
from __future__ import annotations

import socket
import struct
import sys
import time
from typing import Any

_LAST_CAME_AT, _BYTES = 52, 56
"""In Linux' `struct tcp_info`: `tcpi_last_data_recv`, in milliseconds."""


def arrived_s(sock: Any) -> float | None:
    """When the last bytes came to this machine (monotonic, to some milliseconds), whether they were read yet or not; None where
    the system does not tell."""
    if sys.platform != "linux":
        return None
    now_s = time.monotonic()
    try:
        told: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES)
        return now_s - int(struct.unpack_from("=I", told, _LAST_CAME_AT)[0]) / 1e3
    except (OSError, AttributeError, struct.error):  # no TCP, or closed
        return None
