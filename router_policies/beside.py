"""What is wrong with a team file beside its shape, so that it is mended in one go: names that lead nowhere, doubled ones.

It is looked for in a copy without the fields that were complained of. Where a whole part or an entry of a list would have to
go, nothing is said: other mistakes would only follow from that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from router_policies.build import build
from router_policies.complaints import missing
from router_policies.lazily import lazily
from router_policies.problems import BadFile, Problem
from router_policies.strict_yaml import validate
from router_policies.yaml_events import Document, Path_, dotted

schema = lazily("router_policies.schema")


_NAMED: tuple[Path_, ...] = (("classes",), ("models", "aliases"))  # what other places of the file may name


class _TooMuch(Exception):
    """More than a single field would have to go."""


def beside(document: Document, told: Sequence[Problem]) -> list[Problem]:
    """Problems at other places than those that were told."""
    if document.problems:
        return []
    places = {(problem.line, problem.column) for problem in told}
    try:
        rest = replace(document, data=_without(document.data, {problem.path for problem in told}, ()))
        build(rest, validate(rest, schema.TeamFile))
    except _TooMuch:
        return []
    except BadFile as more:
        taken_out = {(parent, missing(name)) for parent, _, name in (problem.path.rpartition(".") for problem in told)}
        return [
            problem for problem in more.problems
            if (problem.line, problem.column) not in places and (problem.path, problem.message) not in taken_out
        ]  # fmt: skip
    return []


def _without(data: Any, paths: Collection[str], here: Path_) -> Any:
    """A copy that lacks the fields at these paths. Raises `_TooMuch`."""
    entries = enumerate(data) if isinstance(data, list) else data.items() if isinstance(data, dict) else ()
    found: list[tuple[Any, Any]] = []
    for name, value in entries:
        if dotted((*here, name)) not in paths:
            found.append((name, _without(value, paths, (*here, name))))
        elif isinstance(data, list) or isinstance(value, dict | list) or here in _NAMED:
            raise _TooMuch
    if isinstance(data, list):
        return [value for _, value in found]
    return dict(found) if isinstance(data, dict) else data
