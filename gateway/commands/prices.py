"""`tollway prices`: the dated price book. `tollway config schema`: the settings file's schema, for editors."""
from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.table import Table

from gateway.commands.remote import console, print_json
from gateway.metering import listing, prices
from gateway.metering.rows import PriceFileError
from gateway.settings import File

FILES = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group(name="prices")
def group() -> None:
    """The price book: dated rows that are never overwritten."""


@group.command()
@click.argument("model", metavar="PROVIDER/MODEL")
@click.option("--at", help="as of this day, 2026-11-30; default: now")
@click.option("--file", "files", type=FILES, multiple=True, help="operator price files; their rows win")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def show(model: str, at: str | None, files: tuple[Path, ...], as_json: bool) -> None:
    """The rows in force for one model: every tier, region and band."""
    provider, slash, name = model.partition("/")
    if not slash:
        raise click.BadParameter("write PROVIDER/MODEL, for example openai/gpt-5.5")
    book = _load(files)
    rows = listing.show(book, provider, name, _instant(at))
    if as_json:
        print_json(rows)
    if not rows:
        near = listing.nearest(book, provider, name)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise click.ClickException(f"no price row for {model} is in force{hint}")
    if as_json:
        return
    table = Table("row", "tier", "region", "over", "prices, USD per million tokens", "source")
    for row in rows:
        text = ", ".join(f"{column} {price}" for column, price in row["prices"].items())
        table.add_row(row["id"], row["tier"], row["region"] or "", str(row["over"] or ""), text, row["source"] or "")
    console.print(table)


@group.command()
@click.argument("files", type=FILES, nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def check(files: tuple[Path, ...], as_json: bool) -> None:
    """Validate price files; without any, the shipped ones."""
    problems = listing.check(files or prices.BUILT_IN)
    if as_json:
        print_json(problems)
    for problem in () if as_json else problems:
        click.echo(problem, err=True)
    if not problems and not as_json:
        click.echo("all good")
    sys.exit(1 if problems else 0)


@click.group(name="config")
def config_group() -> None:
    """The settings file, tollway.yaml."""


@config_group.command()
def schema() -> None:
    """JSON Schema of tollway.yaml, for editors."""
    print_json(File.model_json_schema())


def _load(files: tuple[Path, ...]) -> prices.PriceBook:
    try:
        return prices.load(files)
    except PriceFileError as error:
        raise click.ClickException(str(error)) from error


def _instant(day: str | None) -> int:
    if day is None:
        return time.time_ns() // 1_000
    try:
        return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1e6)
    except ValueError:
        raise click.BadParameter(f"{day!r} is no day; write 2026-11-30", param_hint="--at") from None
