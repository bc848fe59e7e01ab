"""`tollway policy backtest`: recorded traffic under two sets of policies, by the gateway's own decision code, simulated."""
from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from gateway import settings as settings_
from gateway.backtests import engines, table
from gateway.backtests.traffic import Traffic
from gateway.commands.remote import Remote, later, print_json, together
from gateway.commands.rerate import day
from gateway.ledger.reader import LedgerUnavailable
from router_policies.files import BadFile, PolicySet, load_folder
from router_policies.traces import BadTrace

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
ENGINES: dict[str, engines.Engine] = {"local": engines.here, "ray": engines.on_ray}


@dataclass(frozen=True, slots=True)
class Asked:
    """Which traffic, in the user's words."""

    traces: tuple[Path, ...]
    config: Path | None
    since: str | None
    until: str | None
    team: str | None
    model: str
    mix: str | None
    most: int | None


@dataclass(frozen=True, slots=True)
class Shown:
    keep: bool
    as_json: bool
    markdown: bool


_ASKED = (
    click.option(
        "--trace", "traces", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="trace file (JSON lines, Azure's CSV, Mooncake's JSON lines), as often as needed; default: the ledger",
    ),
    click.option(
        "--config", type=click.Path(path_type=Path, dir_okay=False),
        help="tollway.yaml with lanes, prices and ledger; default: ./tollway.yaml where it is, else an example menu of lanes",
    ),
    click.option("--from", "since", callback=day, metavar="DAY", help="first day of the ledger, UTC"),
    click.option("--to", "until", callback=day, metavar="DAY", help="last day, included"),
    click.option("--team", help="team whose policy a trace file's calls meet; default: the only one of NEW, else `default`"),
    click.option("--model", default="m", show_default=True, help="model of a trace file's calls"),
    click.option("--mix", metavar="CLASS=SHARE,...", help="classes that a trace's calls ask for, dealt out by conversation"),
    click.option("--calls", "most", type=click.IntRange(1), help="replay so many calls at most"),
)  # fmt: skip
_SHOWN = (
    click.option("--keep", is_flag=True, help="tell a running gateway the result too: the dashboard's page Policies shows it"),
    click.option("--json", "as_json", is_flag=True, help="print JSON"),
    click.option("--markdown", is_flag=True, help="print a table for a pull request"),
)


@click.command()
@click.argument("old", type=FOLDER)
@click.argument("new", type=FOLDER)
@together("asked", Asked, *_ASKED)
@click.option("--seed", default=0, show_default=True, help="of the simulated luck")
@click.option(
    "--engine", type=click.Choice(list(ENGINES)), default="local", show_default=True,
    help="processes of this machine, or the Ray cluster that RAY_ADDRESS names",
)
@click.option(
    "--shards", type=click.IntRange(1, 4_096),
    help="parts that each run is made in, beside each other, each after an hour of warming up; default: 1, with Ray as many "
    "as the cluster has processors for",
)
@together("shown", Shown, *_SHOWN)
@later
def backtest(
    remote: Callable[[], Remote], old: Path, new: Path, asked: Asked, seed: int, engine: str, shards: int | None, shown: Shown
) -> None:  # fmt: skip
    """Replay recorded traffic under the policy folders OLD and NEW: dollars, waits, missed deadlines, with 95 % intervals."""
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise click.ClickException(
            "--engine ray needs Ray, which is not installed here: pip install 'tollway[ray]', or leave the option out"
        )
    try:
        traffic = _traffic(asked, [load_folder(folder) for folder in (old, new)])
        lanes, start = traffic.lanes(), time.perf_counter()
        tallies = ENGINES[engine](engines.Task((old, new), traffic, lanes, seed, shards))
    except (BadFile, BadTrace, LedgerUnavailable, settings_.SettingsError, engines.EngineFailed) as error:
        raise click.ClickException(str(error)) from error
    result = table.compared(tallies)
    if not result["calls"]:
        raise click.ClickException("there is no call in this range; widen --from and --to, or name trace files")
    result["seconds"] = round(time.perf_counter() - start, 2)
    if shown.keep:
        remote().ask("POST", "/tollway/admin/backtests", json={"title": f"{old} to {new}", "result": result})
    if shown.as_json:
        print_json(result)
    else:
        click.echo("\n".join(table.lines(result, markdown=shown.markdown)))


def _traffic(asked: Asked, sets: Sequence[PolicySet]) -> Traffic:
    config = asked.config
    if config is None and Path("tollway.yaml").is_file():
        config = Path("tollway.yaml")
    if config is None and not asked.traces:
        raise click.ClickException("nothing to replay: name trace files with --trace, or a tollway.yaml with --config")
    teams = [name for name in sets[1].policies if name != "default"]
    return Traffic(
        traces=asked.traces, config=config, since=asked.since, until=asked.until, model=asked.model, most=asked.most,
        team=asked.team or (teams[0] if len(teams) == 1 else "default"), shares=_shares(asked.mix, sets),
    )  # fmt: skip


def _shares(mix: str | None, sets: Sequence[PolicySet]) -> tuple[tuple[str, float], ...]:
    if mix is None:
        return ()
    found = []
    for pair in mix.split(","):
        name, _, share = pair.partition("=")
        try:
            found.append((name.strip(), float(share)))
        except ValueError:
            raise click.BadParameter(f"{pair!r} is not CLASS=SHARE", param_hint="--mix") from None
    if not 0.0 < sum(share for _, share in found) <= 1.0001 or min(share for _, share in found) < 0:
        raise click.BadParameter("shares must add up to 1 or less", param_hint="--mix")
    known = {name for one in sets for policy in (*one.policies.values(), one.default) for name in policy.classes}
    for name, _ in found:
        if name not in known:
            raise click.BadParameter(f"there is no class {name!r}; known are {', '.join(sorted(known))}", param_hint="--mix")
    return tuple(found)
