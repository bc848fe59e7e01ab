"""The `tollway` command: one small function per command, the work is done elsewhere, and loaded when it is asked for."""
from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import click

_ELSEWHERE: Mapping[str, str] = {
    "demo": "gateway.demo:command",
    "alerts": "gateway.commands.alerts:group",
    "budgets": "gateway.commands.budgets:group",
    "db": "gateway.commands.db:group",
    "keys": "gateway.commands.keys:group",
    "policy": "gateway.commands.policy:group",
    "sensitivity": "gateway.commands.sensitivity:group",
    "prices": "gateway.commands.prices:group",
    "config": "gateway.commands.prices:config_group",
    "reconcile": "gateway.commands.reconcile:reconcile",
    "report": "gateway.commands.report:report",
    "why": "gateway.commands.report:why",
    "rerate": "gateway.commands.rerate:rerate",
    "users": "gateway.commands.users:users",
    "projects": "gateway.commands.users:projects",
    "audit": "gateway.commands.users:audit",
}
"""Command -> module and name: none loads what only others need."""
_JSON = "tollway.json"


class _Told(click.ClickException):
    """The same error, which shows itself as JSON."""

    def __init__(self, error: click.ClickException) -> None:
        super().__init__(error.format_message())
        self.exit_code = error.exit_code  # type: ignore[misc]  # a class variable in click, read of the instance

    def show(self, file: IO[Any] | None = None) -> None:
        told = {"error": {"message": self.message, "exit": self.exit_code}}
        click.echo(json.dumps(told, ensure_ascii=False), file=file, err=file is None)


class Commands(click.Group):
    """The commands of this file, and those of `_ELSEWHERE`. What goes wrong under `--json` is JSON too, on standard error."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            raise (_Told(error) if ctx.meta[_JSON] else error) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, name = _ELSEWHERE[cmd_name].split(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tollway")
def main() -> None:
    """Tollway: a gateway for LLM calls that keeps prefix caches warm, prices waiting, and weighs what was used.

    Start with `tollway up`: the whole product on this machine, no key needed.
    """


@main.command()
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="settings; default: tollway.yaml")
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--port", default=4000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="processes that serve calls")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="data folder; wins over the settings")
@click.option("--embedded", metavar="URL", help="add the embedded engine that listens at URL", hidden=True)
@click.option("--demo-team", help="make a first key for this team in DATA/keys/demo", hidden=True)
def serve(
    config: Path | None, host: str, port: int, workers: int, data: Path | None, embedded: str | None, demo_team: str | None
) -> None:
    """Run the gateway alone, in front of the backends of tollway.yaml."""
    from gateway import serve as serving

    if config is None and (Path("tollway.yaml").is_file() or embedded is None):
        config = Path("tollway.yaml")
    serving.run(serving.read_settings(config, data, embedded), host, port, demo_team, workers)


@main.command()
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="further backends; default: tollway.yaml")
@click.option("--host", default="127.0.0.1", show_default=True, help="address of the gateway")
@click.option("--port", default=4000, show_default=True, type=click.IntRange(1, 65535), help="port of the gateway")
@click.option("--dashboard-port", default=8501, show_default=True, type=click.IntRange(1, 65535))
@click.option("--data", default=".tollway", show_default=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("--no-dashboard", is_flag=True, help="leave the dashboard out")
@click.option("--threads", type=click.IntRange(1, 256), help="threads of the embedded engine; default: all cores")
def up(
    config: Path | None, host: str, port: int, dashboard_port: int, data: Path, no_dashboard: bool, threads: int | None
) -> None:
    """The whole product on one machine: embedded engine, gateway, dashboard. Ctrl-C stops all."""
    from gateway import up as whole

    if config is None and Path("tollway.yaml").is_file():
        config = Path("tollway.yaml")
    whole.run(
        whole.Plan(
            config=config,
            host=host,
            port=port,
            dashboard_port=None if no_dashboard else dashboard_port,
            data=data.resolve(),
            threads=threads,
        )
    )


if __name__ == "__main__":
    main()
