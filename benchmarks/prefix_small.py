"""What cache plans cost files of few, short or odd sessions: other files made of recorded ones, through the planner alone.

    python -m benchmarks.prefix_small --sessions FILE [--provider NAME ...] [--file NAME ...] [--json]

`benchmarks.prefix` says what a file of real sessions costs; here the same sessions are cut short, taken one by one, robbed of
their tools, made apps of their own, and put in other orders, so that a planner that knows nothing yet is seen at its worst.
Families are those in which nothing is spoilt. The gateway around the planner changes nothing about the cost (a test says so).
"""
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from benchmarks.prefix import FAMILIES, oracle, picked, prices_of, prompts_of, requests, wire_body
from benchmarks.prefix_alone import alone, untouched
from benchmarks.providers.rules import PROVIDERS, Provider
from gateway.demo.sessions import Session, load

_FAMILIES = [family for family in FAMILIES if family.name in ("plain", "uneven gaps", "one-shot")]
_SAVED = 0.01
_MIXED = (1, 20, 2, 3, 1, 20, 1, 5, 2, 1, 20)
_RANDOM_FILES = 24


class Row(NamedTuple):
    """Costs of a file in a family as shares of untouched."""

    provider: str
    file: str
    family: str
    calls: int
    planned: float
    oracle: float

    @property
    def saving(self) -> float | None:
        """Share of the oracle's; None where there is next to nothing to save."""
        return (1 - self.planned) / (1 - self.oracle) if self.oracle < 1 - _SAVED else None


def files(sessions: Sequence[Session]) -> dict[str, list[Session]]:
    """By name; the same ones each time."""
    found = {f"{n} calls each": [cut(one, n) for one in sessions] for n in (1, 2, 3, 5)}
    for many in (1, 2, 3):
        found |= {f"{many} sessions of {n}": [cut(one, n) for one in sessions[1 : 1 + many]] for n in (1, 2, 3)}
    by_length = sorted(sessions, key=lambda one: len(one.turns))
    found |= {"shortest": by_length[:3], "longest": by_length[-5:], "backwards": list(sessions[::-1])}
    found |= {f"only {one.id}": [one] for one in sessions[:4]}
    found["mixed lengths"] = [cut(one, n) for one, n in zip(sessions, cycle(_MIXED), strict=False)]
    found["mostly one call"] = [cut(one, 1 if n % 4 else len(one.turns)) for n, one in enumerate(sessions)]
    for name, made in {"no tools": [talk(one) for one in sessions], "three tools": [few_tools(one) for one in sessions],
                       "apps": [app(one, n) for n, one in enumerate(sessions)]}.items():  # fmt: skip
        found[name] = made
        found |= {f"{name}, {n} calls each": [cut(one, n) for one in made] for n in (1, 2, 3)}
    found |= {f"random {n}": by_chance(sessions, Random(n), n % 4) for n in range(_RANDOM_FILES)}
    return found


def cut(one: Session, turns: int) -> Session:
    kept = one.turns[:turns]
    return one.model_copy(update={"turns": kept, "messages": one.messages[: kept[-1]]})


def talk(one: Session) -> Session:
    """Nothing but what was said."""
    said: list[dict[str, Any]] = []
    for each in one.messages:
        role = "user" if each["role"] == "tool" else each["role"]
        said.append({"role": role, "content": each.get("content") or "ok"})
    return one.model_copy(update={"tools": [], "messages": said})


def few_tools(one: Session) -> Session:
    return one.model_copy(update={"tools": one.tools[:3]})


def app(one: Session, number: int) -> Session:
    """With tools and a system prompt that no other has."""
    first, *rest = one.messages
    tools = Random(number).sample(one.tools, min(8, len(one.tools)))
    named = {**first, "content": f"App {number}. {first.get('content')}"}
    return one.model_copy(update={"tools": tools, "messages": [named, *rest]})


def by_chance(sessions: Sequence[Session], rng: Random, kind: int) -> list[Session]:
    """Some of them in any order: whole, cut to one length, to any length, or mixed with talks."""
    some = rng.sample(list(sessions), rng.randrange(min(4, len(sessions)), len(sessions) + 1))
    if kind == 1:
        turns = rng.randrange(3, 9)
        return [cut(one, turns) for one in some]
    if kind == 2:
        return [cut(one, rng.randrange(1, 13)) for one in some]
    if kind == 3:
        some = [talk(one) if rng.random() < 0.5 else one for one in some]
        return [one if rng.random() < 0.5 else cut(one, rng.randrange(1, 6)) for one in some]
    return some


def measure(made: Mapping[str, Sequence[Session]], providers: Sequence[Provider]) -> Iterator[Row]:
    """All files in all families."""
    for provider in providers:
        prices = prices_of(provider)
        for name, sessions in made.items():
            for family in _FAMILIES:
                timed = requests(family, sessions)
                bodies = [(one.at_s, wire_body(provider, one.body, family)) for one in timed]
                direct = untouched(provider, bodies, prices)
                prompts = prompts_of(provider, timed, family)
                best = min(oracle(provider, prices, prompts, [one.session for one in timed])[0], direct)
                planned = alone(provider, bodies, prices)
                yield Row(provider.name, name, family.name, len(bodies), planned / direct, best / direct)


@click.command()
@click.option("--sessions", "file", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--provider", "provider_names", multiple=True, help="default: anthropic, bedrock, qwen, openai-5.6")
@click.option("--file", "file_names", multiple=True, help="one of the files made; default: all")
@click.option("--json", "as_json", is_flag=True)
def main(file: Path, provider_names: tuple[str, ...], file_names: tuple[str, ...], as_json: bool) -> None:
    """What cache plans cost files of few, short or odd sessions."""
    made = files(load(file))
    kept = {name: made[name] for name in picked(dict(zip(made, made, strict=True)), file_names, "file")}
    providers = picked(PROVIDERS, provider_names or ("anthropic", "bedrock", "qwen", "openai-5.6"), "provider")
    rows = list(measure(kept, providers))
    if as_json:
        click.echo(json.dumps([{**row._asdict(), "saving": row.saving} for row in rows], indent=1))
        return
    table = Table("provider", "file", "family", "calls", "to untouched", "saving")
    for row in sorted(rows, key=lambda row: -row.planned):
        table.add_row(row.provider, row.file, row.family, str(row.calls), f"{row.planned:.3f}",
                      "-" if row.saving is None else f"{row.saving:.1%}")  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
