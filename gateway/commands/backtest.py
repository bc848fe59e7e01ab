"""`tollway policy backtest`: recorded traffic under two sets of policies, by the gateway's own decision code, simulated."""

from __future__ import annotations

import importlib.util
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gateway import settings as settings_
from gateway.commands import history
from gateway.commands.remote import Remote, later, print_json
from gateway.commands.rerate import day
from gateway.ledger import Entry, days, replay
from gateway.ledger.reader import LedgerUnavailable
from gateway.ledger.reports import Reports, connect
from gateway.ledger.slices import MAX_ROWS, Slice
from gateway.metering import prices
from router_policies.backtest import router, run
from router_policies.files import BadFile, PolicySet, load_folder
from router_policies.menus import menu
from router_policies.simulate import Reality, Recorded
from router_policies.tally import FIGURES, Sums, Tally, interval, resampled
from router_policies.traces import BadTrace, Mix, merged, read
from router_policies.types import Rates

FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)
_SAMPLE_ENTRIES = 50_000
"""Entries from which lanes' speeds are learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is replayed; small, so that another process can be told."""

    traces: tuple[Path, ...]
    config: Path | None
    since: str | None
    until: str | None
    team: str
    model: str
    shares: tuple[tuple[str, float], ...]
    most: int | None
    seed: int

    def calls(self) -> Iterator[Recorded]:
        """Raises BadTrace or LedgerUnavailable."""
        if self.traces:
            mix = Mix(dict(self.shares))
            found = merged([read(path, team=self.team, model=self.model, mix=mix) for path in self.traces])
        else:
            found = replay.calls(self.entries())
        return islice(found, self.most)

    def entries(self) -> Iterator[Entry]:
        reports = connect(self._settings().database_url)
        try:
            yield from pages(reports, part_of(self.since, self.until))
        finally:
            reports.close()

    def lanes(self) -> list[Reality]:
        if self.config is None:
            return menu([self.model])
        settings = self._settings()
        book, now_us = prices.load(settings.prices), time.time_ns() // 1_000

        def rates_of(provider: str, model: str, tier: str | None) -> Rates:
            found = book.rates(provider, model, tier, now_us)
            return Rates() if found is None else Rates(found.uncached, found.cached, found.cache_write, found.output)

        seen = () if self.traces else islice(self.entries(), _SAMPLE_ENTRIES)
        return history.lanes(settings, rates_of, seen)

    def _settings(self) -> settings_.Settings:
        assert self.config is not None
        return settings_.load(self.config)


def part_of(since: str | None, until: str | None) -> Slice:
    """Days of the ledger, UTC, the last one included."""
    part = Slice()
    if since is not None:
        part = replace(part, since_us=days.day_start(date.fromisoformat(since), "UTC"))
    if until is not None:
        part = replace(part, until_us=days.day_start(date.fromisoformat(until) + timedelta(days=1), "UTC"))
    return part


def pages(reports: Reports, part: Slice) -> Iterator[Entry]:
    """All entries in order of time, a page in memory."""
    after = (0, "")
    while page := reports.entries(part, MAX_ROWS, after):
        yield from page
        after = (page[-1].at_us, page[-1].id)


@click.command()
@click.argument("old", type=FOLDER)
@click.argument("new", type=FOLDER)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="trace file (JSON lines, Azure's CSV, Mooncake's JSON lines), as often as needed; default: the ledger",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="tollway.yaml with lanes, prices and ledger; default: ./tollway.yaml where it is, else an example menu of lanes",
)
@click.option("--from", "since", callback=day, metavar="DAY", help="first day of the ledger, UTC")
@click.option("--to", "until", callback=day, metavar="DAY", help="last day, included")
@click.option("--team", help="team whose policy a trace file's calls meet; default: the only one of NEW, else `default`")
@click.option("--model", default="m", show_default=True, help="model of a trace file's calls")
@click.option("--mix", metavar="CLASS=SHARE,...", help="classes that a trace's calls ask for, dealt out by conversation")
@click.option("--calls", "most", type=click.IntRange(1), help="replay so many calls at most")
@click.option("--seed", default=0, show_default=True, help="of the simulated luck")
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="where the two runs are made"
)
@click.option("--keep", is_flag=True, help="tell a running gateway the result too: the dashboard's page Policies shows it")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.option("--markdown", is_flag=True, help="print a table for a pull request")
@later
def backtest(
    remote: Callable[[], Remote],
    old: Path, new: Path, traces: tuple[Path, ...], config: Path | None, since: str | None, until: str | None, team: str | None,
    model: str, mix: str | None, most: int | None, seed: int, engine: str, keep: bool, as_json: bool, markdown: bool,
) -> None:  # fmt: skip
    """Replay recorded traffic under the policy folders OLD and NEW: dollars, waits, missed deadlines, with 95 % intervals."""
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise click.ClickException(
            "--engine ray needs Ray, which is not installed here: pip install ray, or leave the option out"
        )
    if config is None and Path("tollway.yaml").is_file():
        config = Path("tollway.yaml")
    if config is None and not traces:
        raise click.ClickException("nothing to replay: name trace files with --trace, or a tollway.yaml with --config")
    try:
        sets = [load_folder(folder) for folder in (old, new)]
        teams = [name for name in sets[1].policies if name != "default"]
        traffic = Traffic(
            traces=traces, config=config, since=since, until=until, team=team or (teams[0] if len(teams) == 1 else "default"),
            model=model, shares=_shares(mix, sets), most=most, seed=seed,
        )  # fmt: skip
        lanes = traffic.lanes()
        start = time.perf_counter()
        tallies = _on_ray(traffic, lanes, old, new) if engine == "ray" else _here(traffic, lanes, old, new)
    except (BadFile, BadTrace, LedgerUnavailable, settings_.SettingsError) as error:
        raise click.ClickException(str(error)) from error
    result = compared(tallies)
    if not result["calls"]:
        raise click.ClickException("there is no call in this range; widen --from and --to, or name trace files")
    result["seconds"] = round(time.perf_counter() - start, 2)
    if keep:
        remote().ask("POST", "/tollway/admin/backtests", json={"title": f"{old} to {new}", "result": result})
    if as_json:
        print_json(result)
    else:
        click.echo("\n".join(_lines(result, markdown=markdown)))


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


def _tally(traffic: Traffic, lanes: list[Reality], folder: Path, told: Callable[[int], None] | None = None) -> Tally:
    return run(router(load_folder(folder)), traffic.calls(), lanes, traffic.seed, told)


def _beside(pipe: Any, traffic: Traffic, lanes: list[Reality], folder: Path) -> None:
    try:
        pipe.send(_tally(traffic, lanes, folder))
    except (BadTrace, LedgerUnavailable) as error:
        pipe.send(error)


def _here(traffic: Traffic, lanes: list[Reality], old: Path, new: Path) -> list[Tally]:
    """OLD in a process of its own, NEW here, so that two processors do it in the time of one run."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_beside, args=(theirs, traffic, lanes, old), daemon=True)
    process.start()
    columns = (TextColumn("{task.completed:,.0f} calls"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=traffic.most)
        fresh = _tally(traffic, lanes, new, lambda done: progress.update(task, completed=done))
    while not mine.poll(0.5):
        if not process.is_alive():
            raise click.ClickException("the run of OLD ended too early; is memory short?")
    earlier = mine.recv()
    if isinstance(earlier, Exception):
        raise earlier
    return [earlier, fresh]


def _on_ray(traffic: Traffic, lanes: list[Reality], old: Path, new: Path) -> list[Tally]:
    ray = importlib.import_module("ray")
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    task = ray.remote(_tally)
    return list(ray.get([task.remote(traffic, lanes, folder) for folder in (old, new)]))


# what is shown


def compared(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Both runs, their difference, and intervals, for everything and by team and class."""
    groups = sorted({group for tally in tallies for group in tally.groups()})
    return {
        "calls": tallies[0].sums().calls,
        "all": _figures(tallies, None),
        "groups": [{"team": team, "class": name, **_figures(tallies, (team, name))} for team, name in groups],
    }


def _figures(tallies: Sequence[Tally], group: tuple[str, str] | None) -> dict[str, Any]:
    sums, drawn = [tally.sums(group) for tally in tallies], resampled(tallies, group)
    found: dict[str, Any] = {"old": _plain(sums[0]), "new": _plain(sums[1])}
    for name, figure in FIGURES.items():
        values = [[figure(one) for one in totals] for totals in drawn]
        low, high = interval(new - old for old, new in values)
        found[name] = {
            "old": figure(sums[0]), "old_95": interval(old for old, _ in values),
            "new": figure(sums[1]), "new_95": interval(new for _, new in values),
            "change": figure(sums[1]) - figure(sums[0]), "change_95": (low, high),
        }  # fmt: skip
    return found


def _plain(sums: Sums) -> dict[str, Any]:
    return {
        "calls": sums.calls, "refused": sums.refused, "missed": sums.missed,
        "tokens": {"uncached": sums.uncached, "cached": sums.cached, "output": sums.output},
        "lanes": dict(sorted(sums.lanes.items())),
    }  # fmt: skip


_NAMES = {
    "cost_usd": "cost, USD", "cost_and_wait_usd": "cost + waiting, USD", "miss_share": "deadlines missed",
    "first_token_p50_s": "first token p50, s", "first_token_p95_s": "first token p95, s",
}  # fmt: skip


def _lines(result: dict[str, Any], *, markdown: bool) -> Iterator[str]:
    head = ("", "old", "new", "change", "95 % of the change")
    rows = [("**all**" if markdown else "all", "", "", "", "")]
    rows += [_row(name, result["all"][name]) for name in FIGURES]
    for group in result["groups"]:
        label = f"{group['team']}, {group['class']} ({group['new']['calls']:,} calls)"
        rows.append((f"**{label}**" if markdown else label, "", "", "", ""))
        rows += [_row(name, group[name]) for name in ("cost_usd", "miss_share", "first_token_p50_s", "first_token_p95_s")]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(5)]
    if markdown:
        yield f"{result['calls']:,} calls replayed\n"
    else:
        yield f"{result['calls']:,} calls replayed in {result['seconds']} s"
    yield _line(head, widths, markdown)
    if markdown:
        yield "|" + "|".join("---" if i == 0 else "---:" for i in range(5)) + "|"
    yield from (_line(row, widths, markdown) for row in rows)
    tokens = {which: result["all"][which]["tokens"] for which in ("old", "new")}
    for which, by in tokens.items():
        yield f"{'' if not markdown else chr(10)}tokens, {which}: " + ", ".join(
            f"{count:,} {name}" for name, count in by.items()
        )
    for which in ("old", "new"):
        lanes = ", ".join(f"{lane} {count:,}" for lane, count in result["all"][which]["lanes"].items())
        yield f"{'' if not markdown else chr(10)}lanes, {which}: {lanes}"


def _row(name: str, figure: dict[str, Any]) -> tuple[str, str, str, str, str]:
    old, new, change, (low, high) = figure["old"], figure["new"], figure["change"], figure["change_95"]
    relative = f" ({change / old:+.1%})" if old and name != "miss_share" else ""
    return (
        f"  {_NAMES[name]}", _said(name, old), _said(name, new), f"{_said(name, change)}{relative}",
        f"{_said(name, low)} to {_said(name, high)}",
    )  # fmt: skip


def _said(name: str, value: float) -> str:
    if name == "miss_share":
        return f"{value:.2%}"
    return f"{value:,.4g}" if abs(value) < 1_000 else f"{value:,.0f}"


def _line(row: Sequence[str], widths: Sequence[int], markdown: bool) -> str:
    if markdown:
        return "| " + " | ".join(cell.strip() for cell in row) + " |"
    return "  ".join(
        cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
