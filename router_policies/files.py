"""A folder of team files -> one frozen PolicySet, and the store that swaps it when files change.

A set is swapped whole or not at all: one bad file keeps all teams on the last good set. Files whose name starts with `_`
are bases for `extends` and make no team. Reading is slow next to a call (milliseconds): call it off the event loop.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from router_policies.beside import beside
from router_policies.build import build
from router_policies.lazily import lazily
from router_policies.presets import default_policy
from router_policies.problems import BadFile, Problem, did_you_mean
from router_policies.rules import Policy
from router_policies.strict_yaml import read_document, validate
from router_policies.yaml_events import Document

__all__ = ["BadFile", "PolicySet", "PolicyStore", "Problem", "load_file", "load_folder", "read_documents", "team_files"]

schema = lazily("router_policies.schema")  # its descriptions are read out of its own text
MAX_FILES = 2_000
NOT_INHERITED = frozenset({"team", "description", "extends", "tests", "mode", "canary"})

Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """All teams' policies at one moment. A file with `team: default` is the policy of every team without a file."""

    policies: Mapping[str, Policy] = field(default_factory=dict)
    default: Policy = field(default_factory=default_policy)
    version: str = ""
    candidates: Mapping[str, Policy] = field(default_factory=dict)  # by team: files with `mode: shadow` or `mode: canary`

    def for_team(self, team: str) -> Policy:
        return self.policies.get(team) or self.default


def team_files(folder: Path) -> list[Path]:
    """The YAML files of a folder, by name; hidden ones are left out. Raises BadFile if the folder cannot be read."""
    try:
        found = sorted(p for p in folder.iterdir() if p.suffix.lower() in (".yaml", ".yml") and not p.name.startswith("."))
    except OSError as error:
        said = error.strerror or type(error).__name__
        raise BadFile([Problem(str(folder), 1, 1, "", f"the policy folder cannot be read: {said}")]) from None
    if len(found) > MAX_FILES:
        raise BadFile([Problem(str(folder), 1, 1, "", f"has more than {MAX_FILES} policy files")])
    return found


def load_folder(folder: Path) -> PolicySet:
    """Raises BadFile with the problems of all files."""
    problems: list[Problem] = []
    documents = _read_all(team_files(folder), problems)
    policies: dict[str, Policy] = {}
    candidates: dict[str, Policy] = {}
    for name in documents:
        try:
            policy = _policy(name, documents)
        except BadFile as bad:
            problems += bad.problems
            continue
        if policy is None:
            continue
        kind = policies if policy.mode == "live" else candidates
        if twin := kind.get(policy.team):
            also = "" if policy.mode == "live" else " beside its live one"
            at = documents[name].problem(("team",), f"team `{policy.team}` has a file already{also}: {twin.file}")
            problems.append(at)
        else:
            kind[policy.team] = policy
    for candidate in candidates.values():
        if candidate.team not in policies and not problems:
            mark = documents[Path(candidate.file).name].problem(
                ("mode",), f"team `{candidate.team}` has no live file that this one could stand beside"
            )
            problems.append(mark)
    if problems:
        raise BadFile(problems)
    return _set_of(policies, candidates)


def read_documents(folder: Path) -> list[Document]:
    """Each team's file with what it inherits, as it is written. Raises BadFile."""
    problems: list[Problem] = []
    documents = _read_all(team_files(folder), problems)
    if problems:
        raise BadFile(problems)
    return [_extended(name, documents, ()) for name in documents if not name.startswith("_")]


def load_file(path: Path) -> Policy:
    """One team's policy, its `extends` read from the same folder. Raises BadFile."""
    documents = {path.name: read_document(path)}
    wanted = _parent_name(documents[path.name])
    while wanted is not None and wanted not in documents and (path.parent / wanted).is_file():
        documents[wanted] = read_document(path.parent / wanted)
        wanted = _parent_name(documents[wanted])
    policy = _policy(path.name, documents)
    if policy is None:
        raise BadFile([Problem(str(path), 1, 1, "", "is a base for `extends` (its name starts with _), not a team's policy")])
    return policy


def _set_of(policies: Mapping[str, Policy], candidates: Mapping[str, Policy] = MappingProxyType({})) -> PolicySet:
    default = policies.get("default") or default_policy()
    versions = sorted(f"{team} {policy.version}" for team, policy in {**policies, "default": default}.items())
    versions += sorted(f"{policy.mode} {team} {policy.version}" for team, policy in candidates.items())
    version = "sha256:" + hashlib.sha256("\n".join(versions).encode()).hexdigest()
    return PolicySet(
        policies=MappingProxyType(dict(policies)), default=default, version=version,
        candidates=MappingProxyType(dict(candidates)),
    )  # fmt: skip


def _read_all(paths: list[Path], problems: list[Problem]) -> dict[str, Document]:
    documents = {}
    for path in paths:
        try:
            documents[path.name] = read_document(path)
        except BadFile as bad:
            problems += bad.problems
    return documents


def _policy(name: str, documents: Mapping[str, Document]) -> Policy | None:
    """None for a base file, which is only checked for its shape."""
    document = _extended(name, documents, ())
    if name.startswith("_"):
        if isinstance(document.data, dict):
            validate(replace(document, data={"team": "base", **document.data}), schema.TeamFile)
        return None
    try:
        file = validate(document, schema.TeamFile)
    except BadFile as bad:
        raise BadFile([*bad.problems, *beside(document, bad.problems)]) from None
    return build(document, file)


def _parent_name(document: Document) -> str | None:
    parent = document.data.get("extends") if isinstance(document.data, dict) else None
    return parent if isinstance(parent, str) else None


def _extended(name: str, documents: Mapping[str, Document], below: tuple[str, ...]) -> Document:
    """The document with what it inherits. Raises BadFile for a parent that is not there, or a cycle."""
    document = documents[name]
    parent = _parent_name(document)
    if parent is None:
        return document
    if parent == name or parent in below:
        raise BadFile([document.problem(("extends",), f"makes a cycle: {' -> '.join((*below, name, parent))}")])
    if parent not in documents:
        hint = did_you_mean(parent, (other for other in documents if other != name))
        raise BadFile([document.problem(("extends",), "there is no such file in this folder, or it cannot be read", hint)])
    above = _extended(parent, documents, (*below, name))
    if not isinstance(above.data, dict):
        return document
    inherited = {key: value for key, value in above.data.items() if key not in NOT_INHERITED}
    return Document(
        document.file, _merged(inherited, document.data), {**above.values, **document.values},
        {**above.keys, **document.keys}, (*above.problems, *document.problems),
    )  # fmt: skip


def _merged(above: Any, here: Any) -> Any:
    """Mappings are merged; anything else, lists too, is replaced."""
    if not (isinstance(above, dict) and isinstance(here, dict)):
        return here
    return {**above, **{key: _merged(above.get(key), value) for key, value in here.items()}}


class PolicyStore:
    """The set in force. No thread inside: the gateway calls `reload_if_changed` about twice a second, in a thread."""

    def __init__(self, folder: Path | None, clock: Callable[[], float] = time.time) -> None:
        """Raises BadFile: a gateway does not start on a bad policy. Without a folder every team has the preset."""
        self._folder, self._clock = folder, clock
        self._seen = self._tried = self._signature()
        self.current: PolicySet = load_folder(folder) if folder is not None else _set_of({})
        self.loaded_at: float = clock()
        self.problems: tuple[Problem, ...] = ()  # why the last reload was refused; empty when all is well
        self.failed_at: float | None = None

    def reload_if_changed(self) -> list[Problem] | None:
        """None if there is nothing new. A change is taken up when two looks in a row see the same: not half-written files."""
        signature = self._signature()
        settled, self._seen = signature == self._seen, signature
        if signature == self._tried or not settled:
            return None
        return self.reload()

    def reload(self) -> list[Problem]:
        """Read all files now; swap if every one is good, else keep the last good set and say what is wrong."""
        if self._folder is None:
            return []
        self._tried = self._signature()
        try:
            fresh = load_folder(self._folder)
            if self.current.policies and not fresh.policies:
                raise BadFile([Problem(str(self._folder), 1, 1, "", "all policy files are gone; the last ones stay in force")])
        except BadFile as bad:
            self.problems, self.failed_at = bad.problems, self._clock()
            return list(bad.problems)
        self.current, self.loaded_at = fresh, self._clock()
        self.problems, self.failed_at = (), None
        return []

    def _signature(self) -> Signature:
        """Names, times and sizes: cheap to look at, and different after every write that matters."""
        seen = []
        try:
            for path in team_files(self._folder) if self._folder is not None else ():
                stat = path.stat()
                seen.append((path.name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except (OSError, BadFile):
            return (("?", 0, 0, 0),)
        return tuple(seen)
