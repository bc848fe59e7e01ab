"""Runs the gateway: one uvicorn process on a socket that we bind ourselves, so that a taken port is told in plain words."""
from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType

import click
import uvicorn
import uvloop
from sqlalchemy.exc import SQLAlchemyError

from gateway import app, settings, stores
from gateway.ledger.schema import SchemaError
from gateway.metering.rows import PriceFileError
from gateway.settings import Settings, SettingsError
from gateway.settings_file import BackendSettings, File, LaneSettings, ModelSettings
from gateway.settings_source import digest
from gateway.web.guard import GuardedProtocol, is_loopback
from gateway.workers.far import Seat, Worker
from gateway.workers.supervisor import Supervisor
from router_policies import strict_yaml
from router_policies.presets import EMBEDDED_BACKEND, EMBEDDED_MODEL, EMBEDDED_PRIORS

_BACKLOG = 2048
_DOORS = 16
"""libuv takes one connection from a listening socket in each turn of the loop; so many handles on it take as many."""
_STOP_SLACK_S = 10.0
_YOUNG_OBJECTS = (50_000, 20, 50)
"""How many new containers there may be between collections: a call leaves some dozens until it is in the database, and none of
them in a circle, so that a collection finds nothing and takes five milliseconds."""
_DEALT = sys.platform == "linux"
"""Whether the kernel deals connections out to several sockets on one port."""
_LANE_TIERS = {"fast": "priority", "standard": "default"}


class CannotServe(click.ClickException):
    """The gateway does not start, and why."""


def read_settings(config: Path | None, data: Path | None, embedded_url: str | None) -> Settings:
    """The file's settings with the embedded engine added. Raises `CannotServe`."""
    read = digest(config)
    try:
        file = File() if config is None else strict_yaml.load(config, File)
        folder = Path.cwd() if config is None else config.parent
        if embedded_url is not None:
            backends = {EMBEDDED_BACKEND: embedded(embedded_url), **file.backends}
            file = file.model_copy(update={"backends": backends, "unready_s": 0.0})
        if data is not None:
            file = file.model_copy(update={"data": str(data.resolve())})
        if not file.backends:
            raise SettingsError("no backends: name at least one under `backends:`, or run `tollway up`, which brings its own")
        try:
            made = settings.resolve(file, folder, os.environ)
        except SettingsError as error:
            raise error if config is None else settings.located(config, error) from error
    except (strict_yaml.BadFile, SettingsError) as error:
        raise CannotServe(str(error)) from error
    return made.model_copy(update={"file": None if config is None else config.resolve(), "file_digest": read})


def embedded(url: str) -> BackendSettings:
    """The engine that `tollway up` starts: one model, two lanes over one set of weights."""
    lanes = {
        name: LaneSettings(
            service_tier=_LANE_TIERS[name],
            first_token_ms=30.0,
            prefill_tokens_per_s=1.0 / prior.prefill_s_per_token,
            ms_per_output_token=prior.seconds_per_output_token * 1e3,
        )
        for name, prior in EMBEDDED_PRIORS.items()
    }
    return BackendSettings(
        dialect="openai", url=url, models={EMBEDDED_MODEL: ModelSettings()}, lanes=lanes, cache_salt=True,
        kv_events="/kv_events", fields=[],
    )


def bind(host: str, port: int, option: str, *, shared: bool = False) -> socket.socket:
    """A bound socket, `shared` with others of ours. Raises `CannotServe` if the port is taken: which option names another."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise CannotServe(f"cannot listen on {host}:{port} ({error.strerror}); choose another port with {option}") from error
    return sock


def run(config: Settings, host: str, port: int, demo_team: str | None, workers: int = 1) -> None:
    """Serves until SIGTERM or Ctrl-C; open answers may go on for `drain_s`."""
    if config.admin_key is None and demo_team is None and not _is_loopback(host):
        raise CannotServe(
            f"listening on {host} opens the gateway to the network: give it an admin key of your own first, "
            "`admin_key: env:NAME` or `file:PATH` in the settings"
        )
    if demo_team is None and not (_is_loopback(host) or config.proxies or config.plain_http):
        raise CannotServe(
            f"listening on {host} would let keys and prompts travel unencrypted: name what speaks TLS in front of the gateway, "
            "`proxies: [ADDRESS, ...]` in the settings, or say `plain_http: true` if that is as it should be"
        )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # memory holds keys and prompts: a crash must not write them to a disk
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    seat = None if workers == 1 else Seat(workers=workers, worker=Worker())
    try:
        asgi = app.build(config, demo_team=demo_team, seat=seat)
        asyncio.run(app.check(config))
    except (strict_yaml.BadFile, PriceFileError, SchemaError, ValueError) as error:
        raise CannotServe(str(error)) from error
    except OSError as error:
        raise CannotServe(f"cannot use the data folder {config.data} or the database: {error}") from error
    except SQLAlchemyError as error:
        what = str(error.__cause__ or error).splitlines()[0]
        raise CannotServe(f"database_url: the database cannot be used: {what}") from error
    if seat is not None:
        sys.exit(_supervise(config, host, port, demo_team, asgi, seat))
    sock = bind(host, port, "--port")
    _say_where(config, host, sock)
    _serve(asgi, config, sock)


def _say_where(config: Settings, host: str, sock: socket.socket) -> None:
    name = f"[{host}]" if ":" in host else host
    keys = "the one in the settings" if config.admin_key is not None else config.data / "keys" / "admin"
    logging.getLogger("tollway").info("gateway: http://%s:%d, admin key: %s", name, sock.getsockname()[1], keys)


def _serve(asgi: app.Gateway, config: Settings, sock: socket.socket) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again when all is over; it has been obeyed then
        signal.signal(number, lambda *_: None)
    gc.collect()
    gc.freeze()  # what is there at the start stays: a full collection of it would hold all calls up for a tenth of a second
    gc.set_threshold(*_YOUNG_OBJECTS)
    server(asgi, config.drain_s, config.unready_s).run(sockets=[sock, *[sock.dup() for _ in range(_DOORS - 1)]])


def _supervise(config: Settings, host: str, port: int, demo_team: str | None, asgi: app.Gateway, seat: Seat) -> int:
    """Several processes on one port; the program as it has been read and checked is forked into each."""
    bind(host, port, "--port").close()  # a socket to be shared would be let in beside another program's
    first = bind(host, port, "--port", shared=_DEALT)
    rest = [bind(host, first.getsockname()[1], "--port", shared=True) for _ in range(seat.workers - 1)] if _DEALT else []
    for sock in (first, *rest):
        sock.listen(_BACKLOG)
    _say_where(config, host, first)

    def house(control: socket.socket) -> None:
        uvloop.run(stores.keep_house(config, demo_team, control))

    def worker(number: int, listening: socket.socket, link: socket.socket) -> None:
        seat.sock = link
        _serve(asgi, config, listening)

    return Supervisor((first, *rest), house, worker, config.unready_s + config.drain_s + _STOP_SLACK_S).run(seat.workers)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (host != "" and is_loopback(host))


class Server(uvicorn.Server):
    """Leaves in two steps: for `unready_s` it only says that it will, so that a balancer can stop sending; then it closes its
    door and waits for open answers. A second signal skips the first step."""

    def __init__(self, config: uvicorn.Config, gateway: app.Gateway, unready_s: float) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._unready_s = unready_s
        self._closes_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._closes_at is not None or not self._unready_s or not self.started:
            self._gateway.drain()
            super().handle_exit(sig, frame)
            return
        self._captured_signals.append(sig)
        self._closes_at = time.monotonic() + self._unready_s
        self._gateway.drain()

    async def on_tick(self, counter: int) -> bool:
        leaves = self._closes_at is not None and time.monotonic() >= self._closes_at
        return await super().on_tick(counter) or leaves


def server(asgi: app.Gateway, drain_s: float, unready_s: float = 0.0) -> Server:
    """The HTTP server, as tests run it too."""
    return Server(
        uvicorn.Config(
            asgi,
            loop="uvloop",
            http=GuardedProtocol,
            access_log=False,
            proxy_headers=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(drain_s),
        ),
        asgi,
        unready_s,
    )
