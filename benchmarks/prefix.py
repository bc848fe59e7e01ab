"""What the input of agent sessions costs through Tollway, against the untouched client and an oracle that knows the future.

    python -m benchmarks.prefix --sessions FILE [--provider NAME ...] [--family NAME ...] [--days N] [--only sessions|traces]
                                [--json]

Real gateway, simulated providers (benchmarks/providers) over HTTP, one virtual clock. `untouched` is what the same requests
cost sent directly; `oracle` is a plan by the provider's rules (prefix_clairvoyant) that knows all requests, and (for a family
that spoils its prompts) sees them unspoilt; `bound` (in --json) is what no plan can beat, rules left aside. `saving` is the
share of the oracle's saving that is reached, `foreseeable` the share that a plan by the provider's rules reaches which knows
every chance but not the future (prefix_informed; only where there is something to plan), `from others` if it knows the chances
from the other sessions only, `rules aside` (in --json) if it may store each piece by itself. With pauses chance decides much,
so several days are sent, each to a gateway that knows nothing yet, and the sums told, with the least and the most saving of
a day. Traces have no text: there the planner works alone, against the oracle and the fixed plans.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import prefix_traces
from benchmarks.prefix_clairvoyant import Prompts
from benchmarks.prefix_oracle import Prices, cost_of
from benchmarks.prefix_traffic import FAMILIES, Family, Timed, marked_by_client, traffic
from benchmarks.prefix_world import Declined, World, world
from benchmarks.prefix_yardsticks import foreseeable, oracle
from benchmarks.providers import prompt
from benchmarks.providers.rules import PROVIDERS, Provider
from gateway import caching, dialects
from gateway.core.errors import BadRequest
from gateway.demo.sessions import Session, load
from gateway.metering import prices as books

_PAUSE_S = 50_000.0
"""Between two runs: everything has expired."""
_SAME = 0.01
_ONE_SHOT_ROUNDS = 4


@dataclass(frozen=True)
class Figures:
    """One family at one provider; costs in uncached input tokens."""

    provider: str
    family: str
    level: str
    requests: int
    untouched: float
    tollway: float
    oracle: float
    informed: float | None
    from_others: float | None
    rules_aside: float | None
    bound: float
    days: Sequence[float | None] = ()
    """Saving of each day, if there were several."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Sessions that are not in it, since a request of theirs is not taken as it came, and why."""

    @property
    def to_untouched(self) -> float:
        return self.tollway / self.untouched

    @property
    def to_oracle(self) -> float:
        return self.tollway / self.oracle

    @property
    def saving(self) -> float | None:
        """Share of the oracle's saving; None where there is next to nothing to save."""
        return self._share(self.tollway)

    @property
    def foreseeable(self) -> float | None:
        """Share of the oracle's saving that knowing all chances is worth; None where there is nothing to plan."""
        return None if self.informed is None else self._share(self.informed)

    @property
    def foreseeable_from_others(self) -> float | None:
        """The same for a plan that knows the chances from the other sessions only."""
        return None if self.from_others is None else self._share(self.from_others)

    @property
    def foreseeable_rules_aside(self) -> float | None:
        """The same for one that knows all chances, but may store and renew each piece by itself."""
        return None if self.rules_aside is None else self._share(self.rules_aside)

    def _share(self, cost: float) -> float | None:
        most = self.untouched - self.oracle
        return (self.untouched - cost) / most if most > _SAME * self.untouched else None

    @property
    def missed(self) -> str:
        """Which aim is missed; empty: none."""
        if self.to_untouched > 1 + _SAME:
            return "more than 1 % above untouched"
        aim = 0.95 if self.level == "lossless" else 0.90
        return f"under {aim:.0%} of the saving" if self.saving is not None and self.saving < aim else ""


def prices_of(provider: Provider) -> Prices:
    """In terms of the input price, from the price book; an engine of one's own reads for nothing."""
    if provider.priced_as is None:
        return Prices(read=0.0, writes={}, automatic=(0.0, provider.automatic_s or 0.0), minimum=provider.minimum)
    rates_of = caching.rates_of(books.load())
    row = rates_of(provider.priced_as, provider.model, None) or {}
    marked = rates_of(provider.priced_as, provider.model, "explicit") or row
    unit = row["input"]
    writes = {life_s: marked.get(f"write_{ttl}", marked.get("write", unit)) / unit for ttl, life_s in provider.lives.items()}
    automatic = None if provider.automatic_s is None else (row["cached"] / unit, provider.automatic_s)
    return Prices(read=marked["cached"] / unit, writes=writes, automatic=automatic, minimum=provider.minimum)


def wire_body(provider: Provider, body: Mapping[str, Any], family: Family) -> bytes:
    """The request as a client of the provider's own SDK sends it."""
    name = f"{provider.name}-model"
    raw = orjson.dumps({"model": name, "max_tokens": 64, **body})
    if provider.wire == "openai":
        return raw
    sketch = dialects.read("openai_chat", raw)
    raw = dialects.request("openai_chat", "anthropic_messages", raw, sketch, model=name, set_fields={}, ask_usage=False)
    return orjson.dumps(marked_by_client(orjson.loads(raw))) if family.name == "own marks" else raw


def _wire(provider: Provider, one: Timed, family: Family, *, clean: bool = False) -> bytes:
    """The request of that moment, written once: of a long session that takes longest."""
    body = one.clean if clean else one.body
    key = provider.name, id(body)
    if key not in one.wires:
        one.wires[key] = wire_body(provider, body, family)
    return one.wires[key]


def untouched(provider: Provider, timed: Sequence[Timed], prices: Prices, family: Family) -> float:
    """Sent directly, one answer beginning before the next request but for those of the same moment."""
    cache, total = provider.make(), 0.0
    for _, group in groupby(timed, key=lambda one: one.at_s):
        served = []
        for one in group:
            body = {**orjson.loads(_wire(provider, one, family)), "model": provider.model}
            used = cache.serve("client", body, one.at_s)
            served.append((used, one.at_s))
            total += cost_of(used, prices, provider.lives)
        for used, at_s in served:
            used.begun(at_s)
    return total


def prompts_of(provider: Provider, timed: Sequence[Timed], family: Family) -> list[tuple[float, prompt.Prompt]]:
    """The requests unspoilt, as the provider renders them."""
    render: Callable[[Any], prompt.Prompt] = prompt.anthropic if provider.wire == "anthropic" else prompt.openai
    return [(one.at_s, render({**orjson.loads(_wire(provider, one, family, clean=True)), "model": provider.model}))
            for one in timed]  # fmt: skip


def through(
    running: World, provider: Provider, timed: Sequence[Timed], prices: Prices, family: Family, base_s: float,
    left: dict[int, str],
) -> float:  # fmt: skip
    """Through the gateway, by what the provider counted. A session of which a request is not taken as it came is left out, and
    named in `left` with the reason."""
    costs: dict[int, float] = {}
    for at_s, group in groupby(timed, key=lambda one: one.at_s):
        taken = [one for one in group if one.session not in left]
        try:
            bodies = [_wire(provider, one, family) for one in taken]
            seen = running.send(provider.name, family.name.replace(" ", "-"), bodies, base_s + at_s) if bodies else []
        except (BadRequest, Declined) as why:
            if isinstance(why, Declined) and why.by_provider and _takes(provider, bodies):
                raise click.ClickException(f"{provider.name} refused what it takes from the client itself: {why}") from None
            left.update((one.session, str(why)) for one in taken)
            continue
        for one, each in zip(taken, seen, strict=True):  # those of one moment are of one session
            if each.used is not None:
                costs[one.session] = costs.get(one.session, 0.0) + cost_of(each.used, prices, provider.lives)
    return sum(cost for session, cost in costs.items() if session not in left)


def _takes(provider: Provider, bodies: Sequence[bytes]) -> bool:
    """Whether the provider takes all of them as they are."""
    cache = provider.make()
    try:
        for body in bodies:
            cache.serve("client", {**orjson.loads(body), "model": provider.model}, 0.0)
    except prompt.Refused:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Day:
    """One day's traffic of a family, as it was sent and as it should have been."""

    timed: Sequence[Timed]
    prompts: Prompts
    untouched: float
    tollway: float
    oracle: float
    bound: float

    @property
    def saving(self) -> float | None:
        most = self.untouched - self.oracle
        return (self.untouched - self.tollway) / most if most > _SAME * self.untouched else None


def measure(
    sessions: Sequence[Session], providers: Sequence[Provider], families: Sequence[Family], days: int = 1
) -> Iterator[Figures]:
    """All families at all providers; families of one level share a gateway, as apps of one team would. `days`: of those with
    pauses."""
    for level, of_level in groupby(sorted(families, key=lambda one: one.level), key=lambda one: one.level):
        chosen = list(of_level)
        found: dict[tuple[str, str], list[_Day]] = {}
        left: dict[tuple[str, str], dict[int, str]] = {}
        for day in range(days if any(family.gaps for family in chosen) else 1):
            base_s = 0.0
            with world({"normalize": {"level": level, "hold_out": 0}}) as running:
                for provider in providers:
                    for family in chosen:
                        if (day and not family.gaps) or (family.name == "own marks" and provider.wire != "anthropic"):
                            continue
                        name, timed = (provider.name, family.name), requests(family, sessions, day)
                        one = _day(running, provider, family, timed, base_s, left.setdefault(name, {}))
                        base_s += timed[-1].at_s + _PAUSE_S
                        found.setdefault(name, []).append(one)
        for provider in providers:
            for family in chosen:
                if (provider.name, family.name) in found:
                    told = left[provider.name, family.name].items()
                    why = {sessions[number % len(sessions)].id: reason for number, reason in told}
                    yield _figures(provider, family, found[provider.name, family.name], why)


def requests(family: Family, sessions: Sequence[Session], day: int = 0) -> list[Timed]:
    """The family's, of one day."""
    return traffic(family, sessions, _ONE_SHOT_ROUNDS if family.name == "one-shot" else 1, day)


def _day(
    running: World, provider: Provider, family: Family, timed: Sequence[Timed], base_s: float, left: dict[int, str]
) -> _Day:
    """Sent, and what the others would have made of it."""
    prices = prices_of(provider)
    running.providers.forget()
    cost = through(running, provider, timed, prices, family, base_s, left)
    timed = [one for one in timed if one.session not in left]
    if not timed:
        raise click.ClickException(f"{provider.name}, {family.name}: no session can be sent: {next(iter(left.values()))}")
    direct, prompts = untouched(provider, timed, prices, family), prompts_of(provider, timed, family)
    best, least = oracle(provider, prices, prompts, [one.session for one in timed])
    return _Day(timed, prompts, direct, cost, min(best, direct), least)


def _figures(provider: Provider, family: Family, days: Sequence[_Day], left: Mapping[str, str]) -> Figures:
    aside: tuple[float | None, float | None, float | None] = (None, None, None)
    if provider.lives:
        sessions = [[one.session for one in day.timed] for day in days]
        aside = foreseeable(provider, prices_of(provider), [day.prompts for day in days], sessions)
    return Figures(
        provider.name, family.name, family.level, len(days[0].timed), sum(day.untouched for day in days),
        sum(day.tollway for day in days), sum(day.oracle for day in days), *aside, sum(day.bound for day in days),
        days=[day.saving for day in days] if len(days) > 1 else (), left=left,
    )  # fmt: skip


def _show(found: Sequence[Figures]) -> None:
    shares = "saving", "foreseeable", "from others"
    table = Table("provider", "family", "level", "requests", "to untouched", "to oracle", *shares, "aim missed")
    for one in found:
        known = one.saving, one.foreseeable, one.foreseeable_from_others
        told = ["-" if share is None else f"{share:.1%}" for share in known]
        each = [share for share in one.days if share is not None]
        told[0] += f" ({min(each):.0%} to {max(each):.0%})" if each else ""
        ratios = f"{one.to_untouched:.3f}", f"{one.to_oracle:.3f}"
        table.add_row(one.provider, one.family, one.level, str(one.requests), *ratios, *told, one.missed)
    Console(width=max(Console().width, 130)).print(table)


def picked(known: Mapping[str, Any], names: Sequence[str], what: str) -> list[Any]:
    """Those of these names; all if there are none. Raises `click.BadParameter`."""
    for name in names:
        if name not in known:
            raise click.BadParameter(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(known.values())


@click.command()
@click.option("--sessions", "file", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="recorded sessions, one JSON object a line: {id, tools, messages, turns}")
@click.option("--provider", "provider_names", multiple=True, help=f"one of {', '.join(PROVIDERS)}; default: all")
@click.option("--family", "family_names", multiple=True, help="kind of traffic; default: all")
@click.option("--traces", type=click.Path(exists=True, file_okay=False, path_type=Path), help="folder with the arrival traces; "
              "default: the sessions' own")  # fmt: skip
@click.option("--days", default=5, show_default=True, type=click.IntRange(1, 100), help="of each family with pauses")
@click.option("--only", type=click.Choice(["sessions", "traces"]), help="default: both")
@click.option("--json", "as_json", is_flag=True)
def main(
    file: Path, provider_names: tuple[str, ...], family_names: tuple[str, ...], traces: Path | None, days: int,
    only: str | None, as_json: bool,
) -> None:
    """What the input of agent sessions costs through Tollway."""
    providers = picked(PROVIDERS, provider_names, "provider")
    families = picked({family.name: family for family in FAMILIES}, family_names, "family")
    sessions = load(file)
    found: list[Figures] = []
    regrets: list[prefix_traces.Regret] = []
    with Progress(console=Console(stderr=True)) as progress:
        if only != "traces":
            task = progress.add_task("sessions", total=sum(
                family.name != "own marks" or each.wire == "anthropic" for each in providers for family in families))
            for figures in measure(sessions, providers, families, days):
                found.append(figures)
                progress.advance(task)
                for name, why in figures.left.items():
                    progress.console.print(f"{figures.provider}, {figures.family}: without session {name}: {why}", markup=False)
        if only != "sessions":
            chosen = list(prefix_traces.traces(traces or file.parent))
            task = progress.add_task("traces", total=len(chosen))
            for trace in chosen:
                regrets.append(prefix_traces.regret(trace))
                progress.advance(task)
    if as_json:
        rows = [{**asdict(one), "to_untouched": one.to_untouched, "to_oracle": one.to_oracle, "saving": one.saving,
                 "foreseeable": one.foreseeable, "foreseeable_from_others": one.foreseeable_from_others,
                 "foreseeable_rules_aside": one.foreseeable_rules_aside,
                 "missed": one.missed} for one in found]  # fmt: skip
        click.echo(json.dumps({"sessions": rows, "traces": [one.as_row() for one in regrets]}, indent=1))
        return
    if found:
        _show(found)
    if regrets:
        prefix_traces.show(regrets)


if __name__ == "__main__":
    main()
