"""`tollway sensitivity`: learns from the ledger who waits for answers, and says how well it can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from gateway import settings as settings_
from gateway.backtests.traffic import pages, part_of
from gateway.commands.remote import print_json
from gateway.commands.rerate import day
from gateway.lanes.traffic import place_of
from gateway.ledger import Entry
from gateway.ledger.reader import LedgerUnavailable
from gateway.ledger.reports import connect
from router_policies import waiting
from router_policies.problems import BadFile
from router_policies.turns import Place, Turns
from router_policies.waiting import PERSON_S, PROGRAM_S, Measured, Model, Seen

F = TypeVar("F", bound=Callable[..., Any])
_CHOSEN = "(client's word)"
_WAITS = frozenset({"interactive"})
_WORKS = frozenset({"agent", "batch"})


@click.group(name="sensitivity")
def group() -> None:
    """Latency sensitivity: which calls somebody waits for."""


def _place(command: F) -> F:
    """Where the ledger and the model lie."""
    config = click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="settings; default: ./tollway.yaml")
    data = click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="data folder; wins over the settings")
    return config(data(command))


@group.command()
@_place
@click.option("--from", "since", callback=day, metavar="DAY", help="first day of the ledger, UTC")
@click.option("--to", "until", callback=day, metavar="DAY", help="last day, included")
@click.option(
    "--held-out", default=2, show_default=True, type=click.IntRange(0, 60), help="last days that it is only measured on"
)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def train(
    config: Path | None, data: Path | None, since: str | None, until: str | None, held_out: int, as_json: bool
) -> None:
    """Train the model that names a class where neither client nor rule does.

    A call counts as waited for if the next turn of its conversation came after the time that a person takes, or if its
    client said so; as not waited for if the next turn came at once, or if its client said so. The rest is left out. The model
    lies in the data folder as sensitivity.json; the gateway takes it up at its next start, if it is better than guessing on
    the days held out.
    """
    try:
        settings = settings_.at_hand(config, data)
        reports = connect(settings.database_url)
        try:
            calls = list(labelled(pages(reports, part_of(since, until))))
        finally:
            reports.close()
        model = waiting.train(calls, held_out)
    except (BadFile, LedgerUnavailable, settings_.SettingsError) as error:
        raise click.ClickException(str(error)) from error
    except ValueError as error:
        raise click.ClickException(f"the ledger {error}") from error
    path = settings.data / "sensitivity.json"
    model.save(path)
    if as_json:
        print_json(_plain(model) | {"file": str(path)})
        return
    click.echo(f"trained on {model.known:,} calls; written to {path}")
    _print(model)


@group.command()
@_place
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def show(config: Path | None, data: Path | None, as_json: bool) -> None:
    """What the model has learnt, and how well it tells."""
    try:
        model = waiting.load(settings_.at_hand(config, data).data / "sensitivity.json")
    except (BadFile, settings_.SettingsError, waiting.BadModel) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        print_json(_plain(model))
    else:
        _print(model)


def labelled(entries: Iterable[Entry]) -> Iterator[Seen]:
    """Calls in order, each with whether somebody waited, where that can be told: by the client's word, or by what came next."""
    open_, turns = dict[Place, tuple[Entry, float | None]](), Turns()
    for entry in entries:
        if entry.kind != "attempt":
            continue
        place = place_of(entry.team, entry.key_id, entry.run, entry.client, entry.model, entry.session)
        if entry.attempt == 1:
            gap_s = turns.gap_s(place, entry.at_us / 1e6, entry.tokens.input_total)
            if (before := open_.get(place)) is not None:
                yield _seen(*before, _waited(before[0], gap_s))
            open_[place] = entry, gap_s
        if entry.status in ("ok", "unpriced"):
            turns.answered(place, entry.at_us / 1e6 + entry.total_ms / 1e3, entry.tokens.input_total)
    for entry, gap_s in open_.values():
        yield _seen(entry, gap_s, _said(entry))


def _waited(entry: Entry, next_gap_s: float | None) -> int | None:
    said = _said(entry)
    if said is not None or next_gap_s is None:
        return said
    if next_gap_s <= PROGRAM_S:
        return 0
    return 1 if PERSON_S[0] <= next_gap_s <= PERSON_S[1] else None


def _said(entry: Entry) -> int | None:
    if _CHOSEN not in entry.reason:
        return None
    return 1 if entry.latency_class in _WAITS else 0 if entry.latency_class in _WORKS else None


def _seen(entry: Entry, gap_s: float | None, waited: int | None) -> Seen:
    tokens, in_run = entry.tokens.input_total, entry.run is not None
    return Seen(entry.team, entry.at_us / 1e6, entry.stream, entry.client, tokens, in_run, gap_s, waited)


def _plain(model: Model) -> dict[str, Any]:
    return {
        "known": model.known, "weights": dict(zip(waiting.FEATURES, model.weights, strict=True)), "bias": model.bias,
        "teams": dict(model.teams), "measured": model.measured._asdict() if model.measured else None,
        "used": model.measured is not None and model.measured.useful,
    }  # fmt: skip


def _print(model: Model) -> None:
    found: Measured | None = model.measured
    if found is None:
        click.echo("no days were held out, so nobody knows how well it tells; the gateway does not use it")
    else:
        click.echo(
            f"on {found.calls:,} calls of the days held out ({found.waited_share:.0%} waited for): "
            f"precision {found.precision:.0%}, recall {found.recall:.0%}, "
            f"loss {found.log_loss:.3f} against {found.base_log_loss:.3f} by guessing"
        )
        click.echo("the gateway uses it" if found.useful else "that is not good enough: the gateway does not use it")
    for name, weight in sorted(zip(waiting.FEATURES, model.weights, strict=True), key=lambda pair: -abs(pair[1])):
        click.echo(f"  {name:<12} {weight:+.2f}")
