"""Builders with defaults: the real gateway on a free loopback port, its files, and what model servers usually say."""
from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvloop
from click.testing import CliRunner

from gateway import app, cli, settings
from gateway.serve import bind, server
from tests.cases import clocked
from tests.ports import free_port as free_port
from tests.ports import hold_port
from tests.upstream import PATIENCE_S, Site, until

PRICES = """
[test]
source = "made up"
checked_on = 2026-01-01
rows = [
  {model = "m-*", input = "2", cached = "0.5", write_5m = "2.5", write_1h = "4", output = "10"},
  {model = "m-*", tier = "priority", input = "4", cached = "1", write_5m = "5", write_1h = "8", output = "20"},
]
"""
PLAIN = {"normalize": {"level": "lossless", "hold_out": 0}, "explore": 0}
"""A team's policy that allows everything and leaves nothing to chance."""


# files


def backend(site: Site, dialect: str = "openai", **fields: Any) -> dict[str, Any]:
    """A backend in `tollway.yaml` that speaks to a site."""
    patient = {"connect_timeout_ms": 60_000}  # a busy machine is no dead backend
    return {
        "dialect": dialect, "url": site.url, "key": "env:PROVIDER_KEY", "provider": "test", "models": [site.model], **patient, **fields,
    }  # fmt: skip


def write_files(folder: Path, config: Mapping[str, Any], policies: Mapping[str, Any], prices: str = PRICES) -> Path:
    """`tollway.yaml`, one policy file a team, a price file. JSON is YAML."""
    (folder / "teams").mkdir(parents=True, exist_ok=True)
    (folder / "prices.toml").write_text(prices)
    for team, policy in policies.items():
        write_policy(folder, team, policy)
    path = folder / "tollway.yaml"
    path.write_text(json.dumps({"policies": "teams", "prices": ["prices.toml"], "data": "data", "unready_s": 0, **config}, indent=1))
    return path


def write_policy(folder: Path, team: str, policy: Mapping[str, Any] | str) -> None:
    text = policy if isinstance(policy, str) else json.dumps({"team": team, **policy}, indent=1)
    (folder / "teams" / f"{team}.yaml").write_text(text)


ENV = {"PROVIDER_KEY": "sk-provider-canary-0123456789"}


# the gateway


class Running:
    """What both kinds of running gateway share: keys, and looking things up as a client would."""

    url: str
    folder: Path

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}
        self.http = httpx.Client(verify=False, trust_env=False, timeout=PATIENCE_S)  # no TLS here, and its set-up is slow

    @property
    def admin_key(self) -> str:
        return (self.folder / "data" / "keys" / "admin").read_text().strip()

    def ask(self, method: str, path: str, key: str | None = None, **request: Any) -> httpx.Response:
        """One request with a key, the admin's if none is named."""
        headers = {"authorization": f"Bearer {self.admin_key if key is None else key}", **request.pop("headers", {})}
        while is_overloaded(answer := self.http.request(method, self.url + path, headers=headers, **request)):
            time.sleep(0.05)
        return answer

    def make_key(self, team: str, **fields: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/tollway/admin/keys", json={"team": team, **fields})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def key(self, team: str = "plain") -> str:
        """A key of the team, made once."""
        if team not in self._keys:
            self._keys[team] = self.make_key(team)["key"]
        return self._keys[team]

    def chat(self, body: Any, team: str = "plain", path: str = "/v1/chat/completions", **request: Any) -> httpx.Response:
        """A call with a team's key; a body that is bytes travels as it is."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **request.pop("headers", {})}
        return self.ask("POST", path, self.key(team), content=content, headers=headers, **request)

    def call(self, call_id: str) -> dict[str, Any]:
        """`GET /tollway/calls/{id}`; waits until the call is booked."""

        def found() -> Any:
            answer = self.ask("GET", f"/tollway/calls/{call_id}")
            return answer.json() if answer.status_code == 200 else None

        booked: dict[str, Any] = until(found, f"call {call_id} in the ledger")
        return booked

    def booked(self, site: Site, count: int = 1) -> list[dict[str, Any]]:
        """All calls for the site's model, oldest first, once there are `count`."""

        def found() -> Any:
            rows = self.ask("GET", f"/tollway/usage?by=call_id&model={site.model}").json()["rows"]
            return [row["call_id"] for row in rows] if len(rows) >= count else None

        return [self.call(call_id) for call_id in sorted(until(found, f"{count} booked calls of {site.model}"))]

    def attempts(self, site: Site, by: str = "status") -> dict[str, int]:
        """How many attempts are booked for the site's model, by status."""
        rows = self.ask("GET", f"/tollway/usage?by={by}&model={site.model}").json()["rows"]
        return {row[by]: row["attempts"] for row in rows}

    def metric(self, name: str) -> float:
        """Sum of all series of that name."""
        lines = self.ask("GET", "/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


def is_overloaded(answer: httpx.Response) -> bool:
    """Whether the gateway cannot keep up: on a busy machine a burst waits for longer than the second that it may."""
    return answer.status_code == 503 and b"the gateway is overloaded" in answer.content


class Gateway(Running):
    """The gateway in a thread of this process: what its loop does can be looked at."""

    def __init__(self, folder: Path, config: Mapping[str, Any], policies: Mapping[str, Any], prices: str = PRICES) -> None:
        super().__init__()
        self.folder = folder
        path = write_files(folder, config, policies, prices)
        asgi = app.build(settings.load(path, {**os.environ, **ENV}))
        self.asgi = asgi
        self._server = server(asgi, drain_s=1)
        sock = bind("127.0.0.1", 0, "--port")
        self.port = sock.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(sock,), daemon=True, name="gateway")
        self._thread.start()
        until(lambda: self._server.started or not self._thread.is_alive(), "the gateway to start")
        assert self._server.started, "the gateway did not start; see the log"

    def _serve(self, sock: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._server.serve(sockets=[sock]))

    def tasks(self) -> list[str]:
        """Names of the tasks in the gateway's loop that serve calls."""

        async def names() -> list[str]:
            return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]

        return asyncio.run_coroutine_threadsafe(names(), self.loop).result(PATIENCE_S)

    def close(self) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the gateway did not stop"

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Process(Running):
    """The gateway as a process of its own, started as `tollway serve`: for signals, crashes and logs."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any] | None = None, policies: Mapping[str, Any] | None = None,
        prices: str = PRICES, env: Mapping[str, str] | None = None, *, clock: Path | None = None, fork: bool = True,
        workers: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        self.folder = folder
        self._workers = workers
        if config is not None:
            write_files(folder, config, policies or {}, prices)
        self.log = folder / "log"
        self.env = {**ENV, **(env or {})}
        self._launch = Forked if fork else Spawned
        self._clock = clock
        self._held = hold_port()
        self.start()

    def start(self) -> None:
        self._held.close()
        self._held = hold_port()
        self.port = self._held.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        argv = ["serve", "--config", str(self.folder / "tollway.yaml"), "--port", str(self.port)]
        argv += ["--workers", str(self._workers)] if self._workers > 1 else []
        self.process = self._launch(argv, self.env, self.log, self._clock)
        try:
            until(lambda: self._ready() or not self.process.alive, "the gateway to start", 2 * PATIENCE_S)
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}; it said: {self.text()[-2_000:]}") from error
        if not self.process.alive:
            self._held.close()
            raise NotStarted(self.text())

    def _ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self.http.get(f"{self.url}/readyz", timeout=10).status_code == 200
        return False

    def text(self) -> str:
        """All it has printed and logged."""
        return self.log.read_text() if self.log.exists() else ""

    def kill(self) -> None:
        """SIGKILL."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        os.kill(self.process.pid, signal.SIGTERM)

    def wait(self, timeout_s: float = PATIENCE_S) -> int | None:
        """Its exit status."""
        return self.process.wait(timeout_s)

    def close(self) -> None:
        self.http.close()
        if self.process.alive:
            self.terminate()
            if self.wait(2) is None:
                self.terminate()    # ends the time in which it is not ready any more
            if self.wait(15) is None:
                self.kill()
        self._held.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["gateway.cli", "tests.build"])


class Forked:
    """`tollway ARGV` in a process forked from one that has read the program already: starts in no time."""

    def __init__(self, argv: list[str], env: Mapping[str, str], log: Path, clock: Path | None) -> None:
        self._process = _forks.Process(target=run_command, args=(argv, env, log, clock), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def wait(self, timeout_s: float) -> int | None:
        self._process.join(timeout_s)
        return self._process.exitcode


class Spawned:
    """`python -m gateway.cli ARGV`, as a user starts it."""

    def __init__(self, argv: list[str], env: Mapping[str, str], log: Path, clock: Path | None) -> None:
        module = ["gateway.cli"] if clock is None else ["tests.cases.clocked", str(clock)]
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *module, *argv], env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None


class NotStarted(Exception):
    """What it said when it did not start."""


def run_command(argv: list[str], env: Mapping[str, str], log: Path, clock: Path | None) -> None:
    """`tollway ARGV` in a process that was forked for it."""
    os.environ.update(env)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", 0), write_through=True)
    for handler in list(logging.root.handlers):
        logging.root.removeHandler(handler)
    if clock is not None:
        clocked.set_off(clock)
    cli.main(argv)


def command(*argv: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """`tollway ARGV` in this process: exit status and all output."""
    result = CliRunner().invoke(cli.main, list(argv), env=dict(env or {}))
    return result.exit_code, result.output


# what model servers say


def chat_body(model: str, text: str = "Say hello.", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


def messages_body(model: str, text: str = "Say hello.", **fields: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": text}], **fields}


def chat_answer(text: str = "Hello there.", usage: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """What an OpenAI-shaped server answers: 100 prompt tokens, 60 of them cached, 5 of output."""
    usage = {
        "prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, "prompt_tokens_details": {"cached_tokens": 60},
    } if usage is None else usage  # fmt: skip
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_790_000_000, "model": "m-served",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}], "usage": dict(usage), **fields,
    }  # fmt: skip


def messages_answer(text: str = "Hello there.", **fields: Any) -> dict[str, Any]:
    """What an Anthropic-shaped server answers: 40 uncached, 60 cached, 5 of output."""
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m-served",
        "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 40, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 60, "output_tokens": 5}, **fields,
    }  # fmt: skip


def data(document: Any) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def chat_chunk(delta: Mapping[str, Any], finish: str | None = None, **fields: Any) -> bytes:
    choices = [{"index": 0, "delta": dict(delta), "finish_reason": finish}]
    return data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "m-served",
                 "choices": choices, **fields})  # fmt: skip


DONE = b"data: [DONE]\n\n"


def chat_usage(usage: Mapping[str, Any] | None = None) -> bytes:
    """The last chunk of a stream whose usage was asked for."""
    usage = chat_answer()["usage"] if usage is None else usage
    return data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "m-served",
                 "choices": [], "usage": usage})  # fmt: skip


def chat_stream(*texts: str, usage: bool = True) -> list[bytes]:
    """An OpenAI stream, one chunk an event."""
    texts = texts or ("Hello", " there.")
    start = chat_chunk({"role": "assistant", "content": ""})
    parts = [start, *(chat_chunk({"content": text}) for text in texts), chat_chunk({}, "stop")]
    return [*parts, *([chat_usage()] if usage else []), DONE]


def event(document: Mapping[str, Any]) -> bytes:
    return b"event: %s\n" % str(document["type"]).encode() + data(document)


def messages_start() -> bytes:
    message = {**messages_answer(), "content": [], "stop_reason": None}
    message["usage"] = {**message["usage"], "output_tokens": 1}
    return event({"type": "message_start", "message": message})


def messages_text(*texts: str) -> list[bytes]:
    deltas = [event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}) for text in texts]
    return [event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}), *deltas]


def messages_finish() -> list[bytes]:
    return [
        event({"type": "content_block_stop", "index": 0}),
        event({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 5}}),
    ]  # fmt: skip


STOP = event({"type": "message_stop"})


def messages_stream(*texts: str) -> list[bytes]:
    """An Anthropic stream, one chunk an event."""
    return [messages_start(), *messages_text(*(texts or ("Hello", " there."))), *messages_finish(), STOP]


@contextlib.contextmanager
def expecting(seconds: float) -> Iterator[None]:
    """Fails if the block takes longer; generous, for the machine is shared."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"took {took:.2f} s"
