"""Names in policy files that nothing at hand serves: models, lanes, backends. No mistakes, for a folder may be written for
several gateways, or ahead of a model; but a slip looks like one, and a pattern that never matches is silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from router_policies.files import BadFile, read_documents
from router_policies.globs import Glob
from router_policies.problems import Problem, did_you_mean
from router_policies.yaml_events import Document, Path_

_ANY = None
_PLACES: tuple[tuple[tuple[str | None, ...], str], ...] = (
    (("models", "allow", _ANY), "models"),
    (("models", "aliases", _ANY), "models"),
    (("models", "fallbacks", _ANY, _ANY), "models"),
    (("rules", _ANY, "when", "model"), "models"),
    (("budgets", _ANY, "downgrade", "model"), "models"),
    (("limits", "rates", _ANY, "models", _ANY), "models"),
    (("classes", _ANY, "lanes", _ANY), "lanes"),
    (("classes", _ANY, "wait", "lanes", _ANY), "lanes"),
    (("rules", _ANY, "lanes", _ANY), "lanes"),
    (("budgets", _ANY, "downgrade", "lanes", _ANY), "lanes"),
    (("backends", "allow", _ANY), "backends"),
)
"""Where a name or a pattern of names stands, and of what."""
_SAYS = {
    "models": "no backend serves such a model", "lanes": "no backend has such a lane", "backends": "there is no such backend",
}  # fmt: skip


class Served(NamedTuple):
    """What there is. `models` is empty where others than those that are listed can be asked for."""

    models: frozenset[str]
    lanes: frozenset[str]
    backends: frozenset[str]


def unserved(folder: Path, served: Served) -> list[Problem]:
    """Names and patterns that match nothing, each once; none of a folder that cannot be read. Mistakes do no harm."""
    try:
        documents = read_documents(folder)
    except BadFile:
        return []
    return sorted({problem for document in documents for problem in _unserved(document, served)})


def _unserved(document: Document, served: Served) -> Iterator[Problem]:
    own = _value(document.data, ("models", "aliases"))
    aliases = frozenset(own if isinstance(own, dict) else ())
    known = {"models": served.models and served.models | aliases, "lanes": served.lanes, "backends": served.backends}
    for path in document.values:
        kind = next((kind for place, kind in _PLACES if _is_at(path, place)), None)
        name = _value(document.data, path)
        if kind is None or not isinstance(name, str) or not known[kind]:
            continue
        if not any(map(Glob(name).matches, known[kind])):
            yield document.problem(path, _SAYS[kind], did_you_mean(name, known[kind]))


def _is_at(path: Path_, place: tuple[str | None, ...]) -> bool:
    return len(path) == len(place) and all(wanted in (_ANY, step) for step, wanted in zip(path, place, strict=True))


def _value(data: Any, path: Path_) -> Any:
    """What stands there; None where nothing does, as where another file's place was written over."""
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return data
