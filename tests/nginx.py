"""A throw-away nginx in front of gateways, as a balancer: no root, no network, nothing outside its own folder.

It is a machine's own program, so tests that need it are skipped where there is none.
"""
from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.ports import hold_port
from tests.upstream import until

_CONFIG = """
daemon off;
worker_processes 1;
{user}
pid {folder}/pid;
error_log {folder}/error.log warn;
events {{ worker_connections 2048; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  upstream replicas {{
    {servers}
  }}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 40m;
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_buffering off;
      proxy_request_buffering off;
    }}
  }}
}}
"""


def binary() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


class Nginx:
    """Deals connections out to replicas; one that refuses them is left alone for a second. Setting `ports` names others."""

    def __init__(self, ports: Sequence[int]) -> None:
        program = binary()
        assert program is not None, "no nginx"
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="tollway-nginx-"))
        self._ports = list(ports)
        self._held = hold_port()
        self.port = int(self._held.getsockname()[1])
        self._write()
        with (self._folder / "said").open("ab") as said:
            self._process = subprocess.Popen([program, "-p", str(self._folder), "-c", "nginx.conf"], stdout=said, stderr=said)
        until(lambda: self._process.poll() is not None or self._listens(), "nginx to listen")
        if self._process.poll() is not None:
            raise RuntimeError(f"nginx did not start: {(self._folder / 'said').read_text()[-500:]}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ports(self) -> list[int]:
        return self._ports

    @ports.setter
    def ports(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._write()
        old = set(psutil.Process(self._process.pid).children())
        self._process.send_signal(signal.SIGHUP)
        until(lambda: not old & set(psutil.Process(self._process.pid).children()), "the workers of before to end")

    def pick(self) -> int:
        """Where a client connects."""
        return self.port

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._held.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self) -> None:
        servers = "\n    ".join(f"server 127.0.0.1:{port} max_fails=1 fail_timeout=1s;" for port in self._ports)
        user = "user root;" if os.geteuid() == 0 else ""
        text = _CONFIG.format(folder=self._folder, servers=servers, port=self.port, user=user)
        (self._folder / "nginx.conf").write_text(text)

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0
