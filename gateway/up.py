"""`tollway up`: starts engine, gateway and dashboard, waits until they answer, tells where they are, stops them all.

The three are processes of their own that cannot outlive this one (`leash.py`). Their output goes to DATA/logs.
"""
from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import httpx
from rich.console import Console
from rich.panel import Panel

from dashboard import run as dashboard
from gateway import leash
from gateway.serve import bind, read_settings
from router_policies.presets import EMBEDDED_BACKEND, EMBEDDED_MODEL

_READY_S = 120.0
_STOP_S = 15.0
DEMO_TEAM = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for on the command line."""

    config: Path | None
    host: str
    port: int
    dashboard_port: int | None
    data: Path
    threads: int | None


@dataclass(slots=True)
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    is_ready: Callable[[], bool]


@dataclass(slots=True)
class _Up:
    plan: Plan
    console: Console = field(default_factory=lambda: Console(stderr=False, highlight=False))
    children: list[_Child] = field(default_factory=list)
    stopping: bool = False
    engine_url: str = ""


def run(plan: Plan) -> None:
    """Returns when all is stopped. Raises `click.ClickException` with what is the matter and what to do."""
    read_settings(plan.config, plan.data, "http://127.0.0.1:1")  # a bad file is told before anything starts
    _ports_free(plan)
    with _alone(plan.data):
        up = _Up(plan)
        first_start = not (plan.data / "keys" / "admin").exists()
        signal.signal(signal.SIGTERM, _interrupt)
        signal.signal(signal.SIGINT, _interrupt)
        try:
            _start_all(up)
            _write_run_file(up)
            _tell(up, first_start)
            _watch(up)
        except KeyboardInterrupt:
            up.console.print("\nstopping ...")
        finally:
            _stop_all(up)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _ports_free(plan: Plan) -> None:
    bind(plan.host, plan.port, "--port").close()
    if plan.dashboard_port is not None:
        bind("127.0.0.1", plan.dashboard_port, "--dashboard-port").close()


@contextmanager
def _alone(data: Path) -> Iterator[None]:
    """One `tollway up` per data folder: two would write one database."""
    data.mkdir(parents=True, exist_ok=True)
    with (data / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise click.ClickException(
                f"another Tollway runs on the data folder {data}; stop it, or choose another folder with --data"
            ) from None
        yield


def _start_all(up: _Up) -> None:
    plan = up.plan
    logs = plan.data / "logs"
    logs.mkdir(exist_ok=True)
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)  # a call waits here while the engine loads
    up.engine_url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    threads = plan.threads or os.cpu_count() or 1
    with up.console.status("starting ...") as status:
        engine = [
            sys.executable, "-m", "inference.server", "--listen-fd", str(listener.fileno()),
            "--threads", str(threads), "--served-name", EMBEDDED_MODEL, "--exit-with-parent",
        ]  # fmt: skip
        _start(up, "engine", engine, f"{up.engine_url}/health", fds=(listener.fileno(),))
        listener.close()
        gateway = [
            sys.executable, "-m", "gateway.cli", "serve", "--host", plan.host, "--port", str(plan.port),
            "--data", str(plan.data), "--embedded", f"{up.engine_url}/v1", "--demo-team", DEMO_TEAM,
        ]  # fmt: skip
        if plan.config is not None:
            gateway += ["--config", str(plan.config)]
        _start(up, "gateway", gateway, f"{_address(plan.host, plan.port)}/readyz")
        if plan.dashboard_port is not None:
            _start_dashboard(up, plan.dashboard_port)
        for child in up.children:
            status.update(f"waiting for the {child.name} ...")
            _await_ready(child)


def _start_dashboard(up: _Up, port: int) -> None:
    url = read_settings(up.plan.config, up.plan.data, "http://127.0.0.1:1").database_url
    command = dashboard.command(port, "127.0.0.1")
    pepper, gateway = up.plan.data / "keys" / "pepper", _address(up.plan.host, up.plan.port)
    env = dashboard.environment(url, "off", pepper, gateway)  # it listens on loopback only, so no login is asked for
    _start(up, "dashboard", command, f"http://127.0.0.1:{port}/_stcore/health", env)


def _start(
    up: _Up, name: str, command: list[str], health: str, env: dict[str, str] | None = None, fds: Sequence[int] = ()
) -> None:
    log = up.plan.data / "logs" / f"{name}.log"
    process = leash.spawn(command, log, env, fds)
    up.children.append(_Child(name, process, log, lambda: _answers(health)))


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _await_ready(child: _Child) -> None:
    until = time.monotonic() + _READY_S
    while not child.is_ready():
        if child.process.poll() is not None:
            raise click.ClickException(f"the {child.name} did not start:\n{_tail(child.log)}")
        if time.monotonic() > until:
            raise click.ClickException(f"the {child.name} did not answer within {_READY_S:.0f} s; see {child.log}")
        time.sleep(0.05)


def _watch(up: _Up) -> None:
    while True:
        for child in up.children:
            if child.process.poll() is not None:
                raise click.ClickException(f"the {child.name} stopped by itself:\n{_tail(child.log)}")
        time.sleep(0.25)


def _stop_all(up: _Up) -> None:
    """The gateway first, so that it can finish what it began while the engine still answers."""
    _run_file(up.plan).unlink(missing_ok=True)
    order = {"gateway": 0, "dashboard": 1, "engine": 2}
    for child in sorted(up.children, key=lambda child: order.get(child.name, 1)):
        if child.process.poll() is None:
            child.process.terminate()
            try:
                child.process.wait(_STOP_S)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                child.process.kill()
                child.process.wait()


def _run_file(plan: Plan) -> Path:
    return plan.data / "run.json"


def _write_run_file(up: _Up) -> None:
    """Where the parts are, for `tollway demo` and whoever looks: there while they run."""
    plan = up.plan
    told = {
        "pid": os.getpid(),
        "gateway": _address(plan.host, plan.port),
        "dashboard": None if plan.dashboard_port is None else f"http://127.0.0.1:{plan.dashboard_port}",
        "engine": {"url": up.engine_url, "backend": EMBEDDED_BACKEND},
    }
    _run_file(plan).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def _tell(up: _Up, first_start: bool) -> None:
    plan, url = up.plan, _address(up.plan.host, up.plan.port)
    keys, command = plan.data / "keys", _command()
    data = "" if plan.data == Path(".tollway").resolve() else f" --data {_short(plan.data)}"
    lines = [f"gateway    {url}/v1   (OpenAI and Anthropic SDKs: base URL {url}/v1 and {url})"]
    if plan.dashboard_port is not None:
        lines.append(f"dashboard  http://127.0.0.1:{plan.dashboard_port}")
    lines.append(f"data       {plan.data}")
    if first_start:
        lines += ["", "keys, shown this once and kept in the data folder (only you can read them):"]
        lines += [f"  {name:5}    {(keys / name).read_text(encoding='ascii').strip()}" for name in ("admin", "demo")]
    else:
        lines += [f"keys       {keys / 'admin'}, {keys / 'demo'}"]
    lines += [
        "",
        "try:",
        f"  curl {url}/v1/chat/completions -H \"Authorization: Bearer $(cat {_short(keys / 'demo')})\" \\",
        "    -H 'Content-Type: application/json' \\",
        f"    -d '{{\"model\": \"{EMBEDDED_MODEL}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello!\"}}]}}'",
        f"  {command} demo{data}     {command} report spend --by team,model,lane{data}",
        "",
        "Ctrl-C stops all.",
    ]
    if up.console.is_terminal:
        up.console.print(Panel("\n".join(lines), title="Tollway is up", expand=False), soft_wrap=True)
    else:
        print("Tollway is up", *lines, sep="\n", flush=True)


def _command() -> str:
    """How to call us from here: by name where a shell finds it."""
    return "tollway" if shutil.which("tollway") else _short(Path(sys.executable).parent / "tollway")


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _address(host: str, port: int) -> str:
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"


def _tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
