"""`tollway db`: the database's schema, apart from any start. Talks to the database itself, not to a running gateway."""
from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
from sqlalchemy.exc import SQLAlchemyError

from gateway import settings
from gateway.commands.remote import print_json
from gateway.ledger import schema
from gateway.settings_file import File
from router_policies import strict_yaml

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@click.group(name="db")
def group() -> None:
    """The database of ledger and keys: its schema."""


def _place(command: F) -> F:
    config = click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="settings; default: tollway.yaml")
    data = click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="data folder; wins over the settings")
    return config(data(command))


@group.command()
@_place
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.pass_context
def status(context: click.Context, config: Path | None, data: Path | None, as_json: bool) -> None:
    """At which schema the database is, and which this program needs. Ends with 1 where they differ."""
    found = _run(schema.revision(_url(config, data)))
    if as_json:
        print_json({"database": found, "program": schema.REVISION, "current": found == schema.REVISION})
    else:
        click.echo(f"database {found or 'empty'}, program {schema.REVISION}")
    context.exit(0 if found == schema.REVISION else 1)


@group.command()
@_place
def upgrade(config: Path | None, data: Path | None) -> None:
    """Bring the database to this program's schema. Gateways of the release before may go on running meanwhile."""
    done = _run(schema.upgrade(_url(config, data)))
    click.echo(f"schema {schema.REVISION}" if done else f"schema {schema.REVISION} already; nothing to do")


@group.command()
@click.argument("revision")
@_place
@click.confirmation_option(prompt="What only the newer schema knew (people, projects, kept answers) is lost. Go on?")
def downgrade(config: Path | None, data: Path | None, revision: str) -> None:
    """Back to an older schema REVISION, such as 0001. Stop all gateways first, and make a backup."""
    _run(schema.downgrade(_url(config, data), revision))
    click.echo(f"schema {revision}")


def _url(config: Path | None, data: Path | None) -> str:
    config = Path("tollway.yaml") if config is None and Path("tollway.yaml").is_file() else config
    try:
        file = File() if config is None else strict_yaml.load(config, File)
    except (strict_yaml.BadFile, OSError) as error:
        raise click.ClickException(str(error)) from error
    if data is not None:
        file = file.model_copy(update={"data": str(data.resolve())})
    return settings.database_url(file, Path.cwd() if config is None else config.parent)


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except (schema.SchemaError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    except (SQLAlchemyError, OSError) as error:
        what = str(error.__cause__ or error).splitlines()[0]
        raise click.ClickException(f"database_url: the database cannot be used: {what}") from error
