"""`tollway policy`: check files before they are merged, run the tests that stand in them, see a decision explained."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
from rich.table import Table

from gateway.commands.backtest import backtest
from gateway.commands.remote import Remote, options, print_json, print_table
from gateway.settings import SHIPPED_POLICIES
from router_policies.checks import check_folder, explain, run_folder_tests
from router_policies.files import BadFile, PolicySet, load_folder
from router_policies.presets import example_lanes
from router_policies.schema import json_schema
from router_policies.types import Ask

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_BYTES_PER_TOKEN = 4


@click.group(name="policy")
def group() -> None:
    """Team policy files."""


@group.command()
@click.argument("folder", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def check(folder: Path, as_json: bool) -> None:
    """Validate all policy files of FOLDER: file, line, what is wrong, nearest valid word."""
    problems = check_folder(folder)
    if as_json:
        fields = ("file", "line", "column", "path", "message", "hint")
        print_json([{name: getattr(problem, name) for name in fields} for problem in problems])
    else:
        for problem in problems:
            click.echo(str(problem), err=True)
        if not problems:
            click.echo(f"{folder}: {len(load_folder(folder).policies)} policies, all good")
    sys.exit(1 if problems else 0)


@group.command()
@click.argument("folder", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def test(folder: Path, as_json: bool) -> None:
    """Run the `tests:` that stand in the policy files of FOLDER."""
    try:
        results = run_folder_tests(folder)
    except BadFile as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json([{"team": r.team, "name": r.name, "passed": r.passed, "wrong": list(r.wrong)} for r in results])
    else:
        for result in results:
            click.echo(f"{'ok  ' if result.passed else 'FAIL'} {result.team}: {result.name}")
            for wrong in result.wrong:
                click.echo(f"     {result.file}:{result.line}: {wrong}; the decision said: {result.reason}", err=True)
        click.echo(f"{sum(r.passed for r in results)} passed, {sum(not r.passed for r in results)} failed")
    sys.exit(0 if all(result.passed for result in results) else 1)


@group.command(name="explain")
@click.argument("request", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--team", required=True)
@click.option("--policies", type=FOLDER, help="policy folder; default: the shipped examples")
@click.option("--header", multiple=True, metavar="NAME:VALUE", help="a request header, as often as needed")
@click.option("--path", default="/v1/chat/completions", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def explain_(
    request: Path, team: str, policies: Path | None, header: tuple[str, ...], path: str, as_json: bool
) -> None:
    """What would be decided for the JSON body in REQUEST, and why every other lane lost."""
    text = request.read_text(encoding="utf-8")
    try:
        body = json.loads(text)
        model = body["model"]
    except (ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{request}: is no request body with a model") from error
    ask = Ask(
        team=team,
        model=model,
        path=path,
        headers=dict(_pair(one) for one in header),
        stream=bool(body.get("stream")),
        has_tools=bool(body.get("tools")),
        prompt_bytes=len(text),
        prompt_tokens=len(text) // _BYTES_PER_TOKEN,
        max_output_tokens=body.get("max_tokens"),
        wished_class=dict(_pair(one) for one in header).get("x-tollway-class"),
        wished_tier=body.get("service_tier"),
    )
    policy = _load(policies).for_team(team)
    decision, rows = explain(policy, ask, example_lanes(policy.models.aliases.get(model, model)))
    if as_json:
        print_json({"class": decision.class_name, "reason": decision.reason, "lanes": [row._asdict() for row in rows]})
        return
    click.echo(decision.reason)
    table = Table("place", "lane", "cost", "wait s", "sum", "says")
    for row in rows:
        table.add_row(str(row.place or "-"), row.lane, _usd(row.cost_usd), _usd(row.wait_s), _usd(row.score_usd), row.says)
    print_table(table)


@group.command()
def schema() -> None:
    """JSON Schema of a team's policy file, for editors."""
    print_json(json_schema())


group.add_command(backtest)


def _load(folder: Path | None) -> PolicySet:
    try:
        return load_folder(folder or SHIPPED_POLICIES)
    except BadFile as error:
        raise click.ClickException(str(error)) from error


def _pair(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise click.BadParameter(f"{text!r} is not NAME:VALUE", param_hint="--header")
    return name.strip().lower(), value.strip()


def _usd(value: Any) -> str:
    return "" if value is None else f"{value:.6g}"


@group.command()
@click.argument("run")
@options
def trace(remote: Remote, run: str) -> None:
    """The calls of RUN as a trace file, which `backtest OLD NEW --trace FILE` replays: tokens and times, no text."""
    for line in remote.ask("GET", f"/tollway/runs/{quote(run, safe='')}/trace")["trace"]:
        click.echo(json.dumps(line, ensure_ascii=False))
