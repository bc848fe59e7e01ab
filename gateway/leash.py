"""Child processes that cannot outlive us, not even when we are killed with -9.

On Linux the kernel does it (PR_SET_PDEATHSIG, set in the child before exec). Elsewhere the child runs below
`python -m gateway.leash COMMAND...`, which holds the read end of a pipe: when its other end closes, we are dead.
"""
from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LINUX = sys.platform == "linux"
_FD = "TOLLWAY_LEASH_FD"


def spawn(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Starts `command` in a session of its own (Ctrl-C reaches only us), its output appended to `log`; it inherits `fds`."""
    merged = {**os.environ, **(env or {})}
    with log.open("ab") as out:
        if _LINUX:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=merged, start_new_session=True,
                preexec_fn=_die_with_parent(os.getpid()), pass_fds=fds,
            )  # fmt: skip
        read_end, _write_end = os.pipe()
        merged[_FD] = str(read_end)
        child = subprocess.Popen(
            [sys.executable, "-m", "gateway.leash", *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=merged,
            start_new_session=True, pass_fds=(read_end, *fds),
        )  # fmt: skip
        os.close(read_end)
        return child


def die_with(parent: int) -> None:
    """From now on this process, forked from `parent`, is killed when that one dies. Linux only; others watch a socket's end."""
    if _LINUX:
        _die_with_parent(parent)()


def _die_with_parent(parent: int):  # type: ignore[no-untyped-def]
    libc = ctypes.CDLL(None, use_errno=True)

    def before_exec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return before_exec


def main() -> int:
    """Runs a command until it ends or the pipe of its starter closes."""
    read_end = int(os.environ.pop(_FD))
    child = subprocess.Popen(sys.argv[1:], close_fds=False)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())

    def watch() -> None:
        os.read(read_end, 1)
        child.kill()

    threading.Thread(target=watch, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
