"""`tollway reconcile`: a provider's usage or cost export against the ledger of a running gateway."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from gateway.commands.remote import Remote, options, print_json, print_table
from gateway.commands.rerate import day
from gateway.ledger.days import UnknownZone, zone
from gateway.reconcile import exports
from gateway.reconcile.lines import BadFile


@click.command()
@click.argument("provider")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--from", "first", callback=day, metavar="DAY", help="first day; default: the file's first")
@click.option("--to", "last", callback=day, metavar="DAY", help="last day, included; default: the file's last")
@click.option("--tz", default="UTC", show_default=True, help="zone of the provider's days")
@click.option("--map", "pairs", multiple=True, metavar="KEY=BACKEND", help="a provider's key or project id, and our backend")
@click.option("--lines", "show", default=20, show_default=True, help="how many gaps to list, the dearest first; -1: all")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def reconcile(remote: Remote, file: Path, as_json: bool, show: int, **words: Any) -> None:
    """Compare the ledger with what PROVIDER billed; FILE is its export, or a CSV.

    PROVIDER is the name in the price book (openai, anthropic, ...). Exit status 0: under 0.1 % stays unexplained.
    """
    result = remote.ask("POST", "/tollway/admin/reconcile", json=_wish(file, **words))
    if as_json:
        print_json(result)
    else:
        _print(result, show)
    sys.exit(0 if result["good"] else 1)


def _wish(file: Path, provider: str, first: str | None, last: str | None, tz: str, pairs: tuple[str, ...]) -> dict[str, Any]:
    try:
        zone(tz)
        export = exports.read(file, tz)
    except UnknownZone as error:
        raise click.BadParameter(str(error), param_hint="--tz") from error
    except BadFile as error:
        raise click.ClickException(str(error)) from error
    days = [line.day for line in export.lines]
    return {
        "provider": provider, "from": first or min(days), "to": last or max(days), "tz": tz, "unit_nanos": export.unit_nanos,
        "keys": dict(_pair(pair) for pair in pairs), "lines": [line.model_dump(exclude_none=True) for line in export.lines],
    }  # fmt: skip


def _pair(text: str) -> tuple[str, str]:
    key, equals, backend = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not KEY=BACKEND", param_hint="--map")
    return key.strip(), backend.strip()


def _print(result: dict[str, Any], show: int) -> None:
    table = Table("cause", title="gaps by cause", title_justify="left")
    for column in ("lines", "tokens", "dollars"):
        table.add_column(column, justify="right")
    for row in result["causes"]:
        table.add_row(row["means"], f"{row['lines']:,}", f"{row['tokens']:,}", _usd(row["usd"]))
    table.add_section()
    for name in ("billed", "booked"):
        table.add_row(name, "", f"{result[name]['tokens']:,}", _usd(result[name]["usd"]))
    table.add_row("gap", "", "", _usd(result["gap_usd"]))
    print_table(table)
    _print_findings(result["findings"], show)
    if result["valued_by"] != "bill":
        click.echo("the file has no dollars: its tokens are valued by the price book")
    click.echo(f"unexplained: {result['residual_share']:.4%} of the bill{'' if result['good'] else ', more than 0.1 %'}")


def _print_findings(findings: list[dict[str, Any]], show: int) -> None:
    dearest = sorted(findings, key=lambda found: -abs(float(found["usd"] or 0)))[: None if show < 0 else show]
    if not dearest:
        return
    title = f"{len(dearest)} of {len(findings)} gaps"
    table = Table("day", "key", "model", "tier", "class", "cause", title=title, title_justify="left")
    table.add_column("tokens", justify="right")
    table.add_column("dollars", justify="right")
    table.add_column("note")
    for found in dearest:
        tier = " ".join(part for part in (found["tier"], found["region"]) if part)
        table.add_row(
            found["day"], found["key"], found["model"], tier, found["class"], found["cause"], f"{found['tokens']:,}",
            _usd(found["usd"]), found["note"],
        )  # fmt: skip
    print_table(table)


def _usd(text: str | None) -> str:
    return "unknown" if text is None else f"{float(text):,.6f}"
