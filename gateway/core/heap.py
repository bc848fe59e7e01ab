"""Memory that is free inside the process goes back to the system."""
from __future__ import annotations

import ctypes


def give_back() -> None:
    """After work whose memory is not needed again: the C library keeps what was freed. Milliseconds; nothing where the library
    is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
