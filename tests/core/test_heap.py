"""What was freed goes back to the system, where the C library can do that."""
from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest

from gateway.core import heap

BLOCK, COUNT = 4_000, 20_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


def test_what_was_freed_goes_back() -> None:
    """Blocks below the size that glibc maps one by one stay in its heap when they are freed."""
    if platform.libc_ver()[0] != "glibc":
        heap.give_back()
        pytest.skip("only glibc gives memory back on request")
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    blocks = [libc.malloc(BLOCK) for _ in range(COUNT)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    for block in blocks[:-1]:               # the last one keeps the top of the heap where it is
        libc.free(block)
    before = resident_bytes()
    heap.give_back()
    assert before - resident_bytes() > BLOCK * COUNT // 2
    libc.free(blocks[-1])
