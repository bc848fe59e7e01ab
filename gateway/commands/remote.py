"""Asking a running gateway: address and key from options, the environment or the data folder; errors as plain sentences."""
from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
import httpx
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

F = TypeVar("F", bound=Callable[..., Any])
console = Console(highlight=False)
DEFAULT_URL = "http://127.0.0.1:4000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A running gateway."""

    url: str
    key: str

    def ask(self, method: str, path: str, **how: Any) -> Any:
        """JSON of an answer. Raises `click.ClickException` for anything else."""
        headers = {"authorization": f"Bearer {self.key}"}
        try:
            answer = httpx.request(method, self.url + path, headers=headers, timeout=60.0, trust_env=False, **how)
        except httpx.HTTPError as error:
            raise click.ClickException(
                f"no gateway answers at {self.url} ({type(error).__name__}); start one with `tollway up`, or name it with --url"
            ) from error
        try:
            body = answer.json()
        except ValueError:
            raise click.ClickException(f"{self.url} answered {answer.status_code}, and not as a Tollway gateway does") from None
        if answer.status_code >= 400:
            raise _error(answer.status_code, _message(body) or f"{self.url}{path} answered {answer.status_code}")
        return body

    def lines(self, method: str, path: str, **how: Any) -> Iterator[Any]:
        """An answer of one JSON document a line, as they come. Raises as `ask` does."""
        headers = {"authorization": f"Bearer {self.key}"}
        try:
            with httpx.stream(method, self.url + path, headers=headers, timeout=600.0, trust_env=False, **how) as answer:
                if answer.status_code >= 400:
                    told = _refusal(answer.read()) or f"{self.url}{path} answered {answer.status_code}"
                    raise _error(answer.status_code, told)
                for line in answer.iter_lines():
                    yield json.loads(line)
        except (httpx.HTTPError, ValueError) as error:
            raise click.ClickException(f"{self.url}{path} broke off ({type(error).__name__}); run it again") from error


def _error(status: int, message: str) -> click.ClickException:
    """What the gateway could make nothing of was wrong use of the command."""
    return click.UsageError(message) if status == 400 else click.ClickException(message)


def _refusal(body: bytes) -> str | None:
    try:
        return _message(json.loads(body))
    except ValueError:
        return None


def _message(body: Any) -> str | None:
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message")) if isinstance(error, dict) else None


def options(command: F) -> F:
    """The options with which a command finds its gateway; it gets one argument, `remote`."""

    def found(remote: Callable[[], Remote], **rest: Any) -> Any:
        return command(remote=remote(), **rest)

    found.__name__, found.__doc__ = command.__name__, command.__doc__
    found.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    return later(found)  # type: ignore[return-value]


def later(command: F) -> F:
    """As `options`, for a command that may do without a gateway: `remote` is a function, which finds it when called."""

    @click.option("--url", envvar="TOLLWAY_URL", help=f"the gateway; default: that of the data folder, else {DEFAULT_URL}")
    @click.option("--key", envvar="TOLLWAY_KEY", help="API key; default: the admin key in the data folder")
    @click.option("--data", default=".tollway", type=click.Path(path_type=Path), help="data folder of `tollway up`")
    def wrapped(url: str | None, key: str | None, data: Path, **rest: Any) -> Any:
        return command(remote=lambda: connect(url, key, data), **rest)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__click_params__ = getattr(command, "__click_params__", []) + wrapped.__click_params__  # type: ignore[attr-defined]
    return wrapped  # type: ignore[return-value]


def together(name: str, kind: type, *params: Callable[[F], F]) -> Callable[[F], F]:
    """Options that a command gets as one value: a dataclass whose fields bear their names."""

    def wrap(command: F) -> F:
        def gathered(**given: Any) -> Any:
            fields = {field.name: given.pop(field.name) for field in dataclasses.fields(kind)}
            return command(**given, **{name: kind(**fields)})

        gathered.__name__, gathered.__doc__ = command.__name__, command.__doc__
        gathered.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
        for param in reversed(params):
            gathered = param(gathered)
        return gathered  # type: ignore[return-value]

    return wrap


def connect(url: str | None, key: str | None, data: Path) -> Remote:
    """Raises `click.ClickException` where no key is to be found."""
    if key is None:
        path = data / "keys" / "admin"
        try:
            key = path.read_text(encoding="ascii").strip()
        except OSError:
            raise click.ClickException(
                f"no key: give --key, set TOLLWAY_KEY, or name the data folder with --data ({path} is not there)"
            ) from None
    return Remote(url=(url or _running(data) or DEFAULT_URL).rstrip("/"), key=key)


def _running(data: Path) -> str | None:
    """Where the gateway is that `tollway up` runs on this data folder; None where none does."""
    try:
        told = json.loads((data / "run.json").read_text(encoding="utf-8"))
        os.kill(told["pid"], 0)  # one that was killed leaves its note
        return str(told["gateway"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None


def always_json(command: F) -> F:
    """`--json` for a command that prints nothing else: who asks every command for it need not know."""

    @click.option("--json", "as_json", is_flag=True, help="print JSON, as it does in any case")
    def wrapped(as_json: bool, **rest: Any) -> Any:
        return command(**rest)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__click_params__ = getattr(command, "__click_params__", []) + wrapped.__click_params__  # type: ignore[attr-defined]
    return wrapped  # type: ignore[return-value]


def print_table(table: Table) -> None:
    """As wide as its figures need: a terminal that is narrower wraps lines, but no figure is ever cut."""
    table.box, table.pad_edge = SIMPLE_HEAD, False
    wide = Console(highlight=False, width=10_000)
    Console(highlight=False, width=max(console.width, wide.measure(table).maximum)).print(table)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
