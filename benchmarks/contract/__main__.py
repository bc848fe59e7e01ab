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
from dataclasses import asdict

import click
from rich.console import Console
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
    err, found = Console(stderr=True), dict[str, Reached]()
    for line in [line for line in PROMISES if line in (lines or EXPERIMENTS) and line in EXPERIMENTS and line not in skip]:
        with err.status(f"{line}: {PROMISES[line].text} ..."):
            began = time.monotonic()
            try:
                found[line] = EXPERIMENTS[line](Scale(long))
            except Exception as error:
                found[line] = Reached(f"failed: {type(error).__name__}: {error}", kept=False, done="broke off")
            err.print(f"{line}: {found[line].figure} ({time.monotonic() - began:.0f} s)", soft_wrap=True)
    if as_json:
        click.echo(json.dumps({line: asdict(reached) for line, reached in found.items()}, indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 170).print(table(found))
    sys.exit(0 if all(reached.kept for reached in found.values()) else 1)


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
