"""`tollway users`, `tollway projects` and `tollway audit`: people, what they may do, and who changed what."""
from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
from rich.table import Table

from gateway.commands.remote import Remote, options, print_json, print_table

_JSON = click.option("--json", "as_json", is_flag=True, help="print JSON")


@click.group(name="users")
def users() -> None:
    """People who sign in at the usage and admin paths, and their roles in teams."""


@users.command(name="add")
@click.argument("subject")
@click.option("--name", default="", help="their name, for people to read")
@click.option("--issuer", help="who vouches for them; default: the identity provider of the settings, else `proxy`")
@click.option("--team", help="a team to let them into")
@click.option("--role", type=click.Choice(["member", "lead"]), default="member", show_default=True)
@click.option("--admin", is_flag=True, help="may do everything")
@_JSON
@options
def add_user(remote: Remote, subject: str, as_json: bool, **fields: Any) -> None:
    """Let a person in. SUBJECT is how the identity provider or the proxy names them."""
    _say(remote.ask("POST", "/tollway/admin/users", json={"subject": subject, **fields}), as_json)


@users.command(name="list")
@_JSON
@options
def list_users(remote: Remote, as_json: bool) -> None:
    """Everybody who may sign in."""
    found = remote.ask("GET", "/tollway/admin/users")
    if as_json:
        print_json(found)
        return
    table = Table("id", "subject", "name", "teams", "state")
    for person in found:
        teams = ", ".join(f"{team} ({role})" for team, role in sorted(person["teams"].items()))
        state = "disabled" if person["disabled_us"] is not None else "admin" if person["admin"] else "good"
        table.add_row(person["id"], person["subject"], person["name"], teams, state)
    print_table(table)


@users.command(name="role")
@click.argument("user_id")
@click.argument("team")
@click.argument("role", type=click.Choice(["member", "lead", "none"]))
@_JSON
@options
def set_role(remote: Remote, user_id: str, team: str, role: str, as_json: bool) -> None:
    """What a person is in a team; `none` takes them out of it."""
    path = f"/tollway/admin/users/{user_id}/teams/{team}"
    _say(remote.ask("DELETE", path) if role == "none" else remote.ask("PUT", path, json={"role": role}), as_json)


@users.command(name="disable")
@click.argument("user_id")
@_JSON
@options
def disable_user(remote: Remote, user_id: str, as_json: bool) -> None:
    """They can no longer sign in. Keys made for them stay until `tollway keys revoke`."""
    _say(remote.ask("DELETE", f"/tollway/admin/users/{user_id}"), as_json)


@click.group(name="projects")
def projects() -> None:
    """Parts of a team's work that keys, budgets and reports may name."""


@projects.command(name="add")
@click.argument("team")
@click.argument("name")
@_JSON
@options
def add_project(remote: Remote, team: str, name: str, as_json: bool) -> None:
    """A project within a team, or one brought back."""
    made = remote.ask("POST", "/tollway/admin/projects", json={"team": team, "name": name})
    if as_json:
        print_json(made)
    else:
        click.echo(f"project {name} of team {team}")


@projects.command(name="list")
@_JSON
@options
def list_projects(remote: Remote, as_json: bool) -> None:
    """All projects."""
    found = remote.ask("GET", "/tollway/admin/projects")
    if as_json:
        print_json(found)
        return
    table = Table("team", "project", "since", "state")
    for one in found:
        table.add_row(one["team"], one["name"], _time(one["created_us"]), "archived" if one["archived_us"] else "good")
    print_table(table)


@projects.command(name="archive")
@click.argument("team")
@click.argument("name")
@_JSON
@options
def archive_project(remote: Remote, team: str, name: str, as_json: bool) -> None:
    """Put a project away; its keys go on until they are revoked, and reports still show it."""
    away = remote.ask("DELETE", f"/tollway/admin/projects/{team}/{name}")
    if as_json:
        print_json(away)
    else:
        click.echo(f"project {name} of team {team} is archived")


@click.command()
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1_000))
@_JSON
@options
def audit(remote: Remote, limit: int, as_json: bool) -> None:
    """Who changed what, newest first."""
    found = remote.ask("GET", "/tollway/admin/audit", params={"limit": limit})
    if as_json:
        print_json(found)
        return
    table = Table("when", "who", "what", "about", "change")
    for row in found:
        table.add_row(_time(row["at_us"]), row["actor"], row["action"], row["target"], _change(row["detail"]))
    print_table(table)


def _change(detail: dict[str, Any]) -> str:
    before, after = detail.get("before"), detail.get("after")
    if not isinstance(after, dict):
        return ", ".join(f"{name} {value}" for name, value in detail.items() if value is not None)[:200]
    old = before if isinstance(before, dict) else {}
    changed = {name: value for name, value in after.items() if value != old.get(name) and value not in (None, "")}
    said = {name: f"{old[name]} -> {value}" if old.get(name) else value for name, value in changed.items()}
    return ", ".join(f"{name} {text}" for name, text in said.items())


def _say(person: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(person)
        return
    teams = ", ".join(f"{team} ({role})" for team, role in sorted(person["teams"].items())) or "no team"
    click.echo(f"{person['id']} {person['subject']}: {'admin' if person['admin'] else teams}")


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")
