"""Forks the house and the workers, forks anew what dies, passes SIGTERM on. One thread, no event loop: forking stays safe.

On Linux each worker has a listening socket of its own on the shared port (SO_REUSEPORT: the kernel deals connections out
evenly), elsewhere all accept from one. The sockets belong to this process, so what a dead worker had not accepted waits for
its successor.
"""
from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from gateway import leash

Role = Callable[[], None]
_HOUSE = -1
_START_S = 10.0
_BACKOFF_S, _MAX_BACKOFF_S, _CALM_S = 0.1, 5.0, 30.0
_HOUSE_STOP_S = 15.0
_log = logging.getLogger("tollway.workers")


@dataclass(slots=True)
class _Child:
    """One role and the process that has it at the moment."""

    number: int
    pid: int = 0
    born: float = 0.0
    deaths: int = 0
    due: float | None = 0.0
    """When to start it (monotonic); None: it runs, or is not wanted any more."""


@dataclass(slots=True)
class Supervisor:
    """`house(control)` and `worker(number, listening, link)` serve until they are told to stop by SIGTERM."""

    sockets: Sequence[socket.socket]
    house: Callable[[socket.socket], None]
    worker: Callable[[int, socket.socket, socket.socket], None]
    stop_s: float
    """How long workers may take to end once told to."""
    _children: dict[int, _Child] = field(default_factory=dict)
    _control: socket.socket | None = None
    _stopping: bool = False
    _status: int = 0

    def run(self, count: int) -> int:
        """Returns the exit status when all is over."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        os.set_blocking(read_end, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda number, _: self._signalled(number))
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        gc.freeze()     # children share what is there: no collection touches it
        self._children = {number: _Child(number) for number in (_HOUSE, *range(count))}
        while self._children:
            self._start_due()
            select.select([read_end], [], [], self._wait_s())
            with contextlib.suppress(BlockingIOError):
                os.read(read_end, 4096)
            self._reap()
        return self._status

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if not self._stopping:
            self._stop()
            return
        for child in self._children.values():  # a second one: nobody is to be waited for that may still come
            if child.number != _HOUSE and child.pid:
                _kill(child.pid, signal.SIGTERM)

    def _stop(self) -> None:
        """Workers first; the house keeps their books until the last one is gone."""
        self._stopping = True
        for child in list(self._children.values()):
            if child.number != _HOUSE and child.pid:
                _kill(child.pid, signal.SIGTERM)
                child.due = time.monotonic() + self.stop_s
            elif not child.pid:
                del self._children[child.number]
        for sock in self.sockets:
            sock.close()
        self._stop_house()

    def _stop_house(self) -> None:
        if self._children.keys() == {_HOUSE}:
            house = self._children[_HOUSE]
            _kill(house.pid, signal.SIGTERM)
            house.due = time.monotonic() + _HOUSE_STOP_S

    # starting

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in list(self._children.values()):
            if child.due is None or child.due > now:
                continue
            child.due = None
            if self._stopping:
                _log.error("a process did not end in time and is killed")
                _kill(child.pid, signal.SIGKILL)
            elif child.number == _HOUSE:
                self._start_house(child)
            else:
                self._start_worker(child)

    def _start_house(self, child: _Child) -> None:
        ours, theirs = socket.socketpair()
        if self._control is not None:
            self._control.close()
        self._control = ours
        self._fork(child, lambda: self.house(theirs), keep=(theirs,))
        theirs.close()

    def _start_worker(self, child: _Child) -> None:
        assert self._control is not None
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"w"], [ours.fileno()])
        except OSError:     # the house died just now: it is reaped next, and all begins anew
            child.due = time.monotonic() + _BACKOFF_S
        else:
            own = self.sockets[child.number % len(self.sockets)]
            ours.close()
            self._fork(child, lambda: self.worker(child.number, own, theirs), keep=(own, theirs))
        ours.close()
        theirs.close()

    def _fork(self, child: _Child, role: Role, keep: Sequence[socket.socket]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        child.born = time.monotonic()
        child.pid = os.fork()
        if child.pid == 0:
            self._become(role, parent, keep)

    def _become(self, role: Role, parent: int, keep: Sequence[socket.socket]) -> NoReturn:
        """Never returns into the supervisor's frames."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            leash.die_with(parent)
            os.setpgid(0, 0)    # Ctrl-C is for the supervisor, which passes it on
            for sock in (*self.sockets, *([self._control] if self._control else ())):
                if sock not in keep:
                    sock.close()
            role()
            status = 0
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    # ending

    def _wait_s(self) -> float | None:
        dues = [child.due for child in self._children.values() if child.due is not None]
        return max(min(dues) - time.monotonic(), 0.0) if dues else None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = next((child for child in self._children.values() if child.pid == pid), None)
            if child is not None:
                child.pid, child.due = 0, None
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, code: int) -> None:
        lived_s, name = time.monotonic() - child.born, "house" if child.number == _HOUSE else f"worker {child.number}"
        if self._stopping:
            self._status = self._status or abs(code)
            del self._children[child.number]
            self._stop_house()
        elif code > 0 and child.deaths == 0 and lived_s < _START_S:
            self._status = code     # it has said why
            del self._children[child.number]
            self._stop()
        else:
            child.deaths = 1 if lived_s > _CALM_S else child.deaths + 1
            wait_s = min(_BACKOFF_S * 2 ** (child.deaths - 1), _MAX_BACKOFF_S)
            _log.error("%s ended (%s); starts again in %.1f s", name, code, wait_s)
            child.due = time.monotonic() + wait_s
            if child.number == _HOUSE:
                self._without_house()

    def _without_house(self) -> None:
        """Workers cannot go on without their house: they end, and start with the next one."""
        for child in self._children.values():
            if child.number != _HOUSE and child.pid:
                _kill(child.pid, signal.SIGKILL)


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        if pid:
            os.kill(pid, number)
