"""`tollway policy`: check files before they are merged, run the tests that stand in them, see a decision explained."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.parse import quote

import click

from gateway.commands.backtest import backtest
from gateway.commands.explain import explain
from gateway.commands.remote import Remote, always_json, options, print_json
from gateway.settings import DEFAULT, SettingsError, at_hand, served
from router_policies.checks import check_folder, run_folder_tests
from router_policies.files import BadFile, PolicySet, load_folder
from router_policies.presets import EMBEDDED_BACKEND, EMBEDDED_MODEL, EMBEDDED_PRIORS
from router_policies.problems import Problem
from router_policies.schema import json_schema
from router_policies.unserved import Served, unserved

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group(name="policy")
def group() -> None:
    """Team policy files."""


@group.command()
@click.argument("folder", type=FOLDER)
@click.option(
    "--config", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="tollway.yaml whose backends the names are compared with; default: ./tollway.yaml where it is",
)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def check(folder: Path, config: Path | None, as_json: bool) -> None:
    """Validate all policy files of FOLDER: file, line, what is wrong, nearest valid word.

    Models, lanes and backends that tollway.yaml does not have are told as warnings: they do not make a file wrong.
    """
    problems = check_folder(folder)
    warnings = [] if problems else _unserved(folder, config)
    if as_json:
        fields = ("file", "line", "column", "path", "message", "hint")
        told = (("error", problems), ("warning", warnings))
        print_json([{"severity": how, **{name: getattr(one, name) for name in fields}} for how, some in told for one in some])
    else:
        for problem in problems:
            click.echo(str(problem), err=True)
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
        if not problems:
            found = load_folder(folder)
            if not found.policies:
                raise click.ClickException(f"{folder}: holds no policy file; each team has one, TEAM.yaml")
            click.echo(f"{folder}: {_counted(found)}, all good")
    sys.exit(1 if problems else 0)


def _unserved(folder: Path, config: Path | None) -> list[Problem]:
    """Names that nothing serves: not in the settings, nor in the engine that `tollway up` adds to them."""
    if config is None and not DEFAULT.is_file():
        return []
    try:
        found = served(at_hand(config))
    except (BadFile, SettingsError) as error:
        raise click.ClickException(str(error)) from error
    models = found.models and found.models | {EMBEDDED_MODEL}
    return unserved(folder, Served(models, found.lanes | EMBEDDED_PRIORS.keys(), found.backends | {EMBEDDED_BACKEND}))


def _counted(found: PolicySet) -> str:
    """How many live policies, and how many files on trial beside them."""
    trials = [f"{count} {mode}" for mode in ("shadow", "canary")
              if (count := sum(policy.mode == mode for policy in found.candidates.values()))]  # fmt: skip
    return ", ".join([f"{len(found.policies)} {'policy' if len(found.policies) == 1 else 'policies'}", *trials])


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


@group.command()
@always_json
def schema() -> None:
    """JSON Schema of a team's policy file, for editors."""
    print_json(json_schema())


group.add_command(explain)
group.add_command(backtest)


@group.command()
@click.argument("run")
@always_json
@options
def trace(remote: Remote, run: str) -> None:
    """The calls of RUN as a trace file, which `backtest OLD NEW --trace FILE` replays: tokens and times, no text."""
    for line in remote.ask("GET", f"/tollway/runs/{quote(run, safe='')}/trace")["trace"]:
        click.echo(json.dumps(line, ensure_ascii=False))
