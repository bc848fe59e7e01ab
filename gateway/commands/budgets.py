"""`tollway budgets`: limits, spent, held and left of the budgets of a running gateway."""
from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
from rich.table import Table

from gateway.commands.remote import Remote, options, print_json, print_table
from gateway.core.money import usd


@click.group(name="budgets")
def group() -> None:
    """Budgets: what may be spent, and what was."""


@group.command()
@click.option("--team", help="only this team's")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def show(remote: Remote, team: str | None, as_json: bool) -> None:
    """Budgets in use since the gateway started, fullest first. Exit 1 if one is spent."""
    rows = [shown(row) for row in remote.ask("GET", "/tollway/admin/budgets") if team in (None, row["team"])]
    rows.sort(key=lambda row: -row["used"])
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo("no budget was used since the gateway started")
    else:
        table = Table("account", "window", *(("limit", "spent", "held", "left", "used")), "resets (UTC)")
        for column in table.columns[2:7]:
            column.justify = "right"
        for row in rows:
            figures = (f"{float(row[name]):,.4f}" for name in ("limit_usd", "spent_usd", "held_usd", "left_usd"))
            table.add_row(row["account"], row["window"], *figures, f"{row['used']:.0%}", row["resets"] or "never")
        print_table(table)
    if any(row["used"] >= 1 for row in rows):
        raise SystemExit(1)


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A budget as people read it: dollars, what is left, and its share that is spent or held."""
    limit, taken = row["limit_nanos"], row["spent_nanos"] + row["held_nanos"]
    ends = row["ends_us"]
    return {
        "account": row["account"], "team": row["team"], "name": row["name"], "window": row["window"],
        "limit_usd": usd(limit), "spent_usd": usd(row["spent_nanos"]), "held_usd": usd(row["held_nanos"]),
        "left_usd": usd(max(limit - taken, 0)), "used": round(taken / limit, 4) if limit else 1.0,
        "resets": None if ends is None else datetime.fromtimestamp(ends / 1e6, UTC).strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip
