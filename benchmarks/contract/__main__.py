"""Prints the contract: what is reached against what is promised.

    python -m benchmarks.contract [C8 C12 ...] [--long] [--json]

Exit status 1 if a promise that was measured is not kept. A run says how long each experiment took and what it did.
"""
from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import contract
from benchmarks.contract import EXPERIMENTS, PROMISES, Reached, Scale


@click.command()
@click.argument("lines", nargs=-1)
@click.option("--long", is_flag=True, help="the full length: minutes to hours")
@click.option("--skip", multiple=True, help="lines that are not to be measured now")
@click.option("--json", "as_json", is_flag=True)
def main(lines: tuple[str, ...], skip: tuple[str, ...], long: bool, as_json: bool) -> None:
    """Measures the lines of the contract (all that can be, if none is named) and prints the table."""
    for module in pkgutil.iter_modules(contract.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{contract.__name__}.{module.name}")
    unknown = [line for line in (*lines, *skip) if line not in PROMISES]
    if unknown:
        raise click.UsageError(f"there is no {unknown[0]}; the contract has C1 to C27")
    wanted = [line for line in PROMISES if line in (lines or EXPERIMENTS) and line in EXPERIMENTS and line not in skip]
    found = measured(wanted, Scale(long))
    if as_json:
        click.echo(json.dumps(document(found, lines or PROMISES), indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 170).print(table(found))
    sys.exit(0 if all(reached.kept for reached in found.values()) else 1)


def measured(wanted: Sequence[str], scale: Scale) -> dict[str, Reached]:
    """One after the other, each alone on the machine; what breaks off is not kept, and the others are measured all the same."""
    err, found = Console(stderr=True), dict[str, Reached]()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err) as bar:
        whole = bar.add_task("", total=len(wanted))
        for line in wanted:
            bar.update(whole, description=f"{line} {PROMISES[line].text}")
            began = time.monotonic()
            try:
                found[line] = EXPERIMENTS[line](scale)
            except Exception as error:
                found[line] = Reached(f"failed: {type(error).__name__}: {error}", kept=False, done="broke off")
            err.print(f"{line}: {found[line].figure} ({time.monotonic() - began:.0f} s)", soft_wrap=True, highlight=False)
            bar.advance(whole)
    return found


def document(found: Mapping[str, Reached], lines: Iterable[str]) -> dict[str, Any]:
    """Each line with what was promised; `kept` is null where nothing was measured."""
    nothing = {"figure": None, "kept": None, "done": None}
    reached = {line: asdict(found[line]) if line in found else nothing for line in lines}
    return {line: {"promise": PROMISES[line].text, "promised": PROMISES[line].figure, **reached[line]} for line in lines}


def table(found: dict[str, Reached]) -> Table:
    shown = Table("", "promise", "promised", "reached", "kept", "done", show_lines=False)
    for line, promise in PROMISES.items():
        reached = found.get(line)
        if reached is None:
            shown.add_row(line, promise.text, promise.figure, "not measured", "", "")
        else:
            shown.add_row(line, promise.text, promise.figure, reached.figure, "yes" if reached.kept else "NO", reached.done)
    return shown


if __name__ == "__main__":
    main()
