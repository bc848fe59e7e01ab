"""Prints which interpreter `make setup` should take: of those on the PATH that are of the named one's release, the quickest.

A machine may have several builds of one release. One that was built without the compiler's profile (pyenv's, by default) needs
some 6 % more of a core for each call of the gateway than a distribution's. The named one stays unless another is quicker by
more than clocks stray and can make environments. Only the standard library is used, and any Python runs this.

    python3.11 benchmarks/quickest_python.py python3.11
"""
from __future__ import annotations

import os
import shutil
import subprocess  # nosec B404
import sys

_MARGIN, _TIMEOUT_S = 0.1, 20.0
_PROBE = """
import bz2, ctypes, ensurepip, lzma, sqlite3, ssl, sys, time, venv, zlib
ensurepip.version()
class Thing:
    __slots__ = ("a", "b")
    def __init__(self, a, b):
        self.a, self.b = a, b
    def sum(self, more):
        return self.a + self.b + len(more)
def seconds():
    began, found = time.process_time(), {}
    for n in range(20_000):
        thing = Thing(n, n & 7)
        found[thing.b] = thing.sum([n, thing])
    return time.process_time() - began
print(*sys.version_info[:2], min(seconds() for _ in range(7)))
"""


def others(named: str) -> list[str]:
    """Files of the same name that come later on the PATH, each once."""
    seen, found = {os.path.realpath(named)}, []
    for folder in os.get_exec_path():
        path = shutil.which(os.path.basename(named), path=folder)
        if path is not None and os.path.realpath(path) not in seen:
            seen.add(os.path.realpath(path))
            found.append(path)
    return found


def probe(path: str) -> tuple[str, float] | None:
    """Its release, and seconds for a little work; None where it does not run, or lacks what an environment needs."""
    try:
        done = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)  # nosec B603
        major, minor, seconds = done.stdout.split()
        return f"{major}.{minor}", float(seconds)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def quickest(name: str) -> str:
    """What to take in place of `name`, or `name`: a path is taken as it is."""
    named = None if os.path.dirname(name) else shutil.which(name)
    first = None if named is None else probe(named)
    if named is None or first is None:
        return name
    release, best_s = first[0], first[1] * (1.0 - _MARGIN)
    best = name
    for path in others(named):
        found = probe(path)
        if found is not None and found[0] == release and found[1] < best_s:
            best, best_s = path, found[1]
    return best


if __name__ == "__main__":
    print(quickest(sys.argv[1]))
