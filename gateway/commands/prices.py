"""`tollway prices`: the dated price book. `tollway config schema`: the settings file's schema, for editors."""
from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.table import Table

from gateway.commands.remote import always_json, print_json, print_table
from gateway.metering import listing, prices, seed
from gateway.metering.rows import PriceFileError
from gateway.settings import SettingsError, at_hand
from gateway.settings_file import File
from router_policies.problems import BadFile

FILES = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group(name="prices")
def group() -> None:
    """The price book: dated rows that are never overwritten."""


@group.command()
@click.argument("model", metavar="PROVIDER/MODEL")
@click.option("--at", help="as of this day, 2026-11-30; default: now")
@click.option(
    "--file", "files", type=FILES, multiple=True, help="price files whose rows win; default: those of ./tollway.yaml"
)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def show(model: str, at: str | None, files: tuple[Path, ...], as_json: bool) -> None:
    """The rows in force for one model: every tier, region and band."""
    provider, slash, name = model.partition("/")
    if not slash:
        raise click.BadParameter("write PROVIDER/MODEL, for example openai/gpt-5.5")
    book = _load(files or _own())
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
    print_table(table)


@group.command()
@click.argument("files", type=FILES, nargs=-1)
@click.option("--allow-extreme", is_flag=True, help="let prices above 10,000 USD per million tokens pass")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def check(files: tuple[Path, ...], allow_extreme: bool, as_json: bool) -> None:
    """Validate price files; without any, those that ./tollway.yaml names, else the shipped ones."""
    files = files or _own()
    problems = listing.check(files or prices.BUILT_IN, allow_extreme=allow_extreme)
    for warning in () if problems or as_json else listing.warnings(files):
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        print_json(problems)
    for problem in () if as_json else problems:
        click.echo(problem, err=True)
    if not problems and not as_json:
        click.echo("all good")
    sys.exit(1 if problems else 0)


@group.command()
@click.argument("source", required=False, type=FILES)
@click.option("--into", type=click.Path(path_type=Path, dir_okay=False), help="file to write; without it, only the diff")
@click.option("--yes", is_flag=True, help="write without asking")
@click.option("--json", "as_json", is_flag=True, help="print the diff as JSON")
def update(source: Path | None, into: Path | None, yes: bool, as_json: bool) -> None:
    """Take over newer prices: from SOURCE, a price file, or without one from the installed genai-prices package.

    Shows what differs from the rows of --into (from the package and without --into: from the shipped rows), then writes
    them there; name that file under `prices:` in tollway.yaml. Nothing is fetched from anywhere.
    """
    text = source.read_text(encoding="utf-8") if source is not None else seed.from_package()
    old = into if into is not None and into.exists() else None if source is not None else prices.BUILT_IN[0]
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / (into or old or source or Path("prices.toml")).name  # rows are named after their file
        fresh.write_text(text, encoding="utf-8")
        problems = listing.check([fresh])
        if problems:
            raise click.ClickException("\n".join(problems))
        changes = listing.diff(_load((old,) if old else (), built_in=False), _load((fresh,), built_in=False))
    if as_json:
        print_json([asdict(change) for change in changes])
    else:
        for change in changes:
            click.echo(f"{'+' if change.before is None else '~'} {change.row}: {_change(change)}")
        click.echo(f"{len(changes)} rows differ", err=True)
    if into is None or not changes:
        return
    if not yes and not click.confirm(f"write {into}?", err=True):
        raise click.Abort
    into.write_text(text, encoding="utf-8")
    click.echo(f"written: {into}; name it under `prices:` in tollway.yaml", err=True)


def _change(change: listing.Change) -> str:
    before = {} if change.before is None else change.before["prices"]
    after = {} if change.after is None else change.after["prices"]
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {before.get(name, '-')} -> {after.get(name, '-')}" for name in names) or "dates or conditions"


@click.group(name="config")
def config_group() -> None:
    """The settings file, tollway.yaml."""


@config_group.command()
@always_json
def schema() -> None:
    """JSON Schema of tollway.yaml, for editors."""
    print_json(File.model_json_schema())


def _own() -> tuple[Path, ...]:
    """Price files of this folder's tollway.yaml."""
    try:
        return at_hand(None).prices
    except (BadFile, SettingsError) as error:
        raise click.ClickException(str(error)) from error


def _load(files: tuple[Path, ...], *, built_in: bool = True) -> prices.PriceBook:
    try:
        return prices.load(files, built_in=built_in)
    except PriceFileError as error:
        raise click.ClickException(str(error)) from error


def _instant(day: str | None) -> int:
    if day is None:
        return time.time_ns() // 1_000
    try:
        return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1e6)
    except ValueError:
        raise click.BadParameter(f"{day!r} is no day; write 2026-11-30", param_hint="--at") from None
