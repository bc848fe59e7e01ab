"""`tollway keys`: virtual keys of a running gateway."""
from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

import click
from rich.table import Table

from gateway.commands.remote import Remote, options, print_json, print_table

_AGE = re.compile(r"(\d{1,5})([hdw])")
_SECONDS = {"h": 3600, "d": 86_400, "w": 604_800}


@click.group(name="keys")
def group() -> None:
    """Virtual keys: who may call, for which team."""


@group.command()
@click.option("--team", required=True, help="whose key it is: the name in the team's policy file")
@click.option("--project", help="project within the team")
@click.option("--name", default="", help="what it is for")
@click.option("--role", type=click.Choice(["member", "lead", "admin"]), default="member", show_default=True)
@click.option("--expires", help="30d, 12h, 2w, or a day such as 2027-01-31")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def create(
    remote: Remote, team: str, project: str | None, name: str, role: str, expires: str | None, as_json: bool
) -> None:
    """Make a key. Its secret is shown once, now."""
    wish = {"team": team, "project": project, "name": name, "role": role, "expires_us": _expiry(expires)}
    made = remote.ask("POST", "/tollway/admin/keys", json=wish)
    if as_json:
        print_json(made)
        return
    click.echo(made["key"])
    click.echo(f"key {made['id']} of team {made['team']}; it is shown this once", err=True)


@group.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def list_(remote: Remote, as_json: bool) -> None:
    """All keys, without their secrets."""
    records = remote.ask("GET", "/tollway/admin/keys")
    if as_json:
        print_json(records)
        return
    table = Table("id", "team", "project", "name", "role", "created", "expires", "state")
    for record in records:
        table.add_row(
            record["id"], record["team"], record["project"] or "", record["name"], record["role"],
            _day(record["created_us"]), _day(record["expires_us"]), _state(record),
        )  # fmt: skip
    print_table(table)


@group.command()
@click.argument("key_id")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def revoke(remote: Remote, key_id: str, as_json: bool) -> None:
    """Make a key useless from now on. KEY_ID stands in `tollway keys list`."""
    record = remote.ask("DELETE", f"/tollway/admin/keys/{key_id}")
    if as_json:
        print_json(record)
    else:
        click.echo(f"key {record['id']} of team {record['team']} is revoked")


def _expiry(text: str | None) -> int | None:
    if text is None:
        return None
    if match := _AGE.fullmatch(text):
        return time.time_ns() // 1_000 + int(match[1]) * _SECONDS[match[2]] * 1_000_000
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write 30d, 12h, 2w or 2027-01-31", param_hint="--expires") from None


def _day(us: int | None) -> str:
    return "" if us is None else datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M")


def _state(record: dict[str, Any]) -> str:
    if record["revoked_us"] is not None:
        return "revoked"
    return "expired" if record["expires_us"] is not None and record["expires_us"] < time.time_ns() // 1_000 else "good"
