"""Prints which interpreter `make setup` should take: of those on the PATH with the release that was named, the quickest.

A machine may have several builds of one release, and a build without the compiler's profile or with a shared libpython takes an
eighth longer for each call. Only the standard library is used, and any Python runs this. The one that was named stays unless
another is quicker by more than a clock strays, and can make environments.

    python3.11 benchmarks/quickest_python.py python3.11
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys

MARGIN = 0.05
_TIMEOUT_S = 20
_PROBE = """
import sys, time, venv, ensurepip, ssl, sqlite3, ctypes, bz2, lzma, zlib
class Thing:
    __slots__ = ("a", "b")
    def __init__(self, a, b):
        self.a, self.b = a, b
    def sum(self, more):
        return self.a + self.b + len(more)
def work():
    found = {}
    for n in range(20_000):
        thing = Thing(n, n & 7)
        found[thing.b] = thing.sum([n, thing])
    return found
best = 9.0
for _ in range(7):
    began = time.process_time()
    work()
    best = min(best, time.process_time() - began)
print(sys.version_info[0], sys.version_info[1], best)
"""


def candidates(name: str) -> list[str]:
    """The named interpreter, then others of that name on the PATH; each file once."""
    named = shutil.which(name)
    found = {os.path.realpath(named): named} if named else {}
    for folder in os.get_exec_path():
        path = shutil.which(os.path.basename(name), path=folder)
        if path:
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def probe(path: str) -> tuple[tuple[int, int], float] | None:
    """Its release, and seconds for a little work; None: it does not run, or lacks what an environment needs."""
    try:
        done = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        major, minor, seconds = done.stdout.split()
        return (int(major), int(minor)), float(seconds)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def quickest(name: str) -> str:
    """The path to take; the name itself where there is nothing to choose."""
    paths = candidates(name)
    if len(paths) < 2:
        return name
    seen = {path: found for path in paths if (found := probe(path)) is not None}
    if paths[0] not in seen:
        return name
    release, named_s = seen[paths[0]]
    best, best_s = paths[0], named_s * (1.0 - MARGIN)
    for path, (its_release, seconds) in seen.items():
        if its_release == release and seconds < best_s:
            best, best_s = path, seconds
    return name if best == paths[0] else best


if __name__ == "__main__":
    print(quickest(sys.argv[1]))
