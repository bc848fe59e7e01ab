"""`tollway keys`: virtual keys of a running gateway."""
from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

import click
from rich.table import Table

from gateway.commands.remote import Remote, options, print_json, print_table
from router_policies.problems import nearest, printable

F = TypeVar("F", bound=Callable[..., Any])
_WINDOWS = ("day", "week", "month", "total")
_AGE = re.compile(r"(\d{1,5})([hdw])")
_SECONDS = {"h": 3600, "d": 86_400, "w": 604_800}


@click.group(name="keys")
def group() -> None:
    """Virtual keys: who may call, for which team."""


def _narrowing(command: F) -> F:
    """Options by which a key is narrowed."""
    expires = click.option("--expires", help="30d, 12h, 2w, or a day such as 2027-01-31")
    budget = click.option("--budget", metavar="USD[/WINDOW]", help="what this key may spend: 50, 2.50/day, 20/week, 900/total")
    zone = click.option("--timezone", default="UTC", show_default=True, help="zone in which the budget's window begins")
    models = click.option("--models", help="comma-separated patterns of the models that it may name")
    addresses = click.option("--addresses", help="comma-separated networks to use it from, e.g. 10.0.0.0/8; '' for all")
    return expires(budget(zone(models(addresses(command)))))


@group.command()
@click.option("--team", required=True, help="whose key it is: the name in the team's policy file")
@click.option("--project", help="project within the team")
@click.option("--name", default="", help="what it is for")
@click.option("--role", type=click.Choice(["member", "lead", "admin"]), default="member", show_default=True)
@click.option("--user", help="the person it is for: an id of `tollway users list`")
@_narrowing
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def create(
    remote: Remote, team: str, project: str | None, name: str, role: str, user: str | None, as_json: bool, **narrowing: Any
) -> None:
    """Make a key. Its secret is shown once, now."""
    wish = {"team": team, "project": project, "name": _printable(name), "role": role, "user_id": user, **_narrowed(**narrowing)}
    made = remote.ask("POST", "/tollway/admin/keys", json=wish)
    if as_json:
        print_json(made)
        return
    click.echo(made["key"])
    click.echo(f"key {made['id']} of team {made['team']}; it is shown this once", err=True)
    if role != "admin":
        _note_default_policy(remote, team)


def _note_default_policy(remote: Remote, team: str) -> None:
    """Says so where no policy file names the team: a slip in its name would else be found by what the key may do."""
    teams: dict[str, str] = {}
    with suppress(click.ClickException):  # the key is made, and has been shown
        teams = remote.ask("GET", "/tollway/admin/policies")["in_force"]
    if teams and team not in teams:
        near = nearest(team, teams)
        hint = f" (did you mean `{near}`?)" if near else ""
        click.echo(f"note: no policy file names team {printable(team)}{hint}; the default policy decides for it", err=True)


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
@click.option("--name", help="what it is for")
@_narrowing
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def change(remote: Remote, key_id: str, name: str | None, as_json: bool, **narrowing: Any) -> None:
    """Another name, expiry, budget or models for a key; what is not named stays. KEY_ID stands in `tollway keys list`."""
    wish = _narrowed(**narrowing) | ({} if name is None else {"name": _printable(name)})
    if not wish:
        raise click.UsageError("name what to change: --name, --expires, --budget, --models or --addresses")
    record = remote.ask("PATCH", f"/tollway/admin/keys/{key_id}", json=wish)
    if as_json:
        print_json(record)
        return
    click.echo(f"key {record['id']} of team {record['team']}: {', '.join(sorted(wish))} changed")


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
        instant = datetime.fromisoformat(text)
        return int((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1e6)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write 30d, 12h, 2w or 2027-01-31", param_hint="--expires") from None


def _narrowed(
    expires: str | None, budget: str | None, timezone: str, models: str | None, addresses: str | None
) -> dict[str, Any]:
    """What was said of it, in the words of the admin paths."""
    said: dict[str, Any] = {}
    if expires is not None:
        said["expires_us"] = _expiry(expires)
    if budget is not None:
        said["budget"] = _budget(budget, timezone)
    limits = {
        name: [one.strip() for one in text.split(",") if one.strip()]
        for name, text in (("models", models), ("addresses", addresses))
        if text is not None
    }
    if limits:
        said["limits"] = limits
    return said


def _budget(text: str, timezone: str) -> dict[str, Any]:
    amount, _, window = text.partition("/")
    try:
        nanos = Decimal(amount.strip().lstrip("$")) * 10**9
    except InvalidOperation:
        nanos = Decimal(-1)
    if not nanos.is_finite() or nanos < 0 or nanos != nanos.to_integral_value() or (window or "month") not in _WINDOWS:
        wrong = f"{text!r} is no budget; write 50, 2.50/day, 20/week or 900/total"
        raise click.BadParameter(wrong, param_hint="--budget")
    return {"limit_nanos": int(nanos), "window": window or "month", "timezone": timezone}


def _printable(text: str) -> str:
    if not text.isprintable():
        raise click.BadParameter("has characters that do not print", param_hint="--name")
    return text


def _day(us: int | None) -> str:
    return "" if us is None else datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M")


def _state(record: dict[str, Any]) -> str:
    if record["revoked_us"] is not None:
        return "revoked"
    return "expired" if record["expires_us"] is not None and record["expires_us"] < time.time_ns() // 1_000 else "good"
