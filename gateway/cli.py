"""The `tollway` command: one small function per command, the work is done elsewhere."""
from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click

from gateway import serve as serving
from router_policies.lazily import lazily

whole = lazily("gateway.up")
_COMMANDS = {
    "alerts": "gateway.commands.alerts:group",
    "audit": "gateway.commands.users:audit",
    "budgets": "gateway.commands.budgets:group",
    "config": "gateway.commands.prices:config_group",
    "db": "gateway.commands.db:group",
    "demo": "gateway.demo.run:command",
    "keys": "gateway.commands.keys:group",
    "policy": "gateway.commands.policy:group",
    "prices": "gateway.commands.prices:group",
    "projects": "gateway.commands.users:projects",
    "reconcile": "gateway.commands.reconcile:reconcile",
    "report": "gateway.commands.report:report",
    "rerate": "gateway.commands.rerate:rerate",
    "sensitivity": "gateway.commands.sensitivity:group",
    "users": "gateway.commands.users:users",
    "why": "gateway.commands.report:why",
}
"""Name -> where it is; the gateway reads none of them when it starts."""


class _Commands(click.Group):
    """Reads a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        return sorted({*self.commands, *_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in _COMMANDS:
            module, _, name = _COMMANDS[cmd_name].partition(":")
            self.add_command(getattr(import_module(module), name), cmd_name)
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
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
