"""`tollway rerate`: prices the past by today's price files, and books what differs."""
from __future__ import annotations

import sys
from datetime import date
from typing import Any

import click
from rich.table import Table

from gateway.commands.remote import Remote, console, options, print_json, print_table


def day(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """A day as an operator writes it; a click callback."""
    try:
        return None if text is None else date.fromisoformat(text).isoformat()
    except ValueError:
        raise click.BadParameter(f"{text!r} is no day; write 2026-11-30", param=parameter) from None


@click.command()
@click.option("--from", "first", required=True, callback=day, metavar="DAY", help="first day, 2026-11-01")
@click.option("--to", "last", required=True, callback=day, metavar="DAY", help="last day, included")
@click.option("--tz", default="UTC", show_default=True, help="zone in which days begin")
@click.option("--team", help="one team only")
@click.option("--model", help="one model only, as clients name it")
@click.option("--dry-run", is_flag=True, help="say what would change, book nothing")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def rerate(
    remote: Remote, first: str, last: str, tz: str, team: str | None, model: str | None, dry_run: bool, as_json: bool
) -> None:
    """Price the entries of a range by the price files as they are now.

    What differs is booked as corrections; old entries stay as they are, and a second run changes nothing.
    """
    if last < first:
        raise click.BadParameter(f"{last} lies before {first}", param_hint="--to")
    wish = {"from": first, "to": last, "tz": tz, "team": team, "model": model, "dry_run": dry_run}
    result: dict[str, Any] = {"error": "the answer ended too early; run it again: nothing is booked twice"}
    with console.status("looking", spinner="line") as status:
        for found in remote.lines("POST", "/tollway/admin/rerate", json=wish):
            status.update(f"{found['looked']:,} entries looked at, {found['changed']:,} differ")
            result = found if found["done"] else result
    if error := result.pop("error"):
        raise click.ClickException(error)
    if as_json:
        print_json(result)
    else:
        _print(result)
    sys.exit(1 if result["no_longer_priced"] else 0)


def _print(result: dict[str, Any]) -> None:
    table = Table(show_header=False, title="would change" if result["dry_run"] else "re-rated", title_justify="left")
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_row("entries looked at", f"{result['looked']:,}")
    table.add_row("changed", f"{result['changed']:,}")
    table.add_row("  whose price was unknown", f"{result['priced_now']:,}")
    table.add_row("price still unknown", f"{result['unknown']:,}")
    table.add_section()
    for name in ("before", "after", "difference"):
        table.add_row(name, f"${result[name + '_usd']}")
    print_table(table)
    for name, attempts in result["missing"].items():
        click.echo(f"no price for {name}: {attempts:,} entries", err=True)
    if result["no_longer_priced"]:
        click.echo(f"{result['no_longer_priced']:,} entries keep a price that no row gives now: bring the row back", err=True)
    if result["restart"]:
        click.echo("new calls are still priced by the older files: restart the gateway", err=True)
