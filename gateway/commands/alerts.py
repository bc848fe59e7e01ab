"""`tollway alerts`: what is told to whom, what would be told now, and whether it arrives."""
from __future__ import annotations

import sys

import click
from rich.table import Table

from gateway.commands.remote import Remote, console, options, print_json, print_table


@click.group(name="alerts")
def group() -> None:
    """Alerts of a running gateway: budgets, spend, caches, waits."""


@group.command()
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def check(remote: Remote, as_json: bool) -> None:
    """A dry run: what would be told now if it were new, and what was told lately. Sends nothing."""
    found = remote.ask("GET", "/tollway/admin/alerts")
    if as_json:
        print_json(found)
        return
    names = ", ".join(f"{channel['name']} ({channel['kind']})" for channel in found["channels"])
    console.print(f"channels: {names or 'none; add one under alerts: channels: in tollway.yaml'}", markup=False)
    for title, alerts in (("now", found["now"]), ("told lately", found["told"])):
        table = Table("kind", "team", "what", "more", title=title, title_justify="left")
        for alert in alerts:
            table.add_row(alert["kind"], alert["team"], alert["title"], alert["text"])
        if alerts:
            print_table(table)
        else:
            console.print(f"{title}: nothing")


@group.command()
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def test(remote: Remote, as_json: bool) -> None:
    """Send a harmless alert by every channel and say what each answered. Exit 1 if one did not take it."""
    said = remote.ask("POST", "/tollway/admin/alerts/test")["channels"]
    if as_json:
        print_json(said)
    else:
        for name, problem in said.items():
            console.print(f"{name}: {problem or 'taken'}", markup=False)
    if any(said.values()):
        sys.exit(1)
