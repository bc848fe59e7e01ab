"""YAML text -> plain values and the place of each, by a strict reading: what is clever in YAML is an error here.

Built from ruamel's events, not its objects: no tag, anchor, alias, doubled key or second document gets as far as a value.
Plain scalars are typed by YAML 1.2: true/false/null, decimal numbers, else text. `010`, `0x1F`, `1_000` and `12:30` are text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from router_policies.problems import BadFile, Problem, printable

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_LINE = 10_000
MAX_VALUES = 20_000  # reading costs about 0.1 ms each, and the gateway reads while it serves

Path_ = tuple[str | int, ...]
Json = Any

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]{0,30})(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][-+]?[0-9]{1,3})?")
_WORDS: Mapping[str, Json] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": float("inf"), ".Inf": float("inf"), ".INF": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"),
    ".nan": float("nan"), ".NaN": float("nan"), ".NAN": float("nan"),
}  # fmt: skip
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Mark:
    file: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Document:
    """Plain values of one file, with the place of every key and value."""

    file: str
    data: Json
    values: Mapping[Path_, Mark]
    keys: Mapping[Path_, Mark]
    problems: tuple[Problem, ...] = ()  # what can be told without a model, such as doubled keys

    def problem(self, path: Path_, message: str, hint: str = "", *, at_key: bool = False) -> Problem:
        """A problem at this path, or at the nearest place above it that stands in the file."""
        marks = self.keys if at_key else self.values
        for cut in range(len(path), -1, -1):
            mark = marks.get(path[:cut]) or self.values.get(path[:cut])
            if mark is not None:
                return Problem(mark.file, mark.line, mark.column, dotted(path), message, hint)
        return Problem(self.file, 1, 1, dotted(path), message, hint)


def dotted(path: Path_) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{printable(part)}"
    return text.removeprefix(".")


def read(text: str, file: str) -> Document:
    """Raises BadFile where the text cannot be read to its end; lesser problems stand in the document."""
    builder = _Builder(file)
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE:
            raise BadFile([Problem(file, number, 1, "", f"has a line of more than {MAX_LINE} characters")])
    try:
        data = builder.document(YAML(typ="rt").parse(text))
    except (YAMLError, RecursionError, ValueError) as error:
        builder.problems.append(_syntax(error, text, file))
        raise BadFile(builder.problems) from None
    return Document(file, data, builder.values, builder.keys, tuple(builder.problems))


class _Builder:
    """Turns events into values; goes on after a problem to find the next."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.values: dict[Path_, Mark] = {}
        self.keys: dict[Path_, Mark] = {}

    def document(self, events: Iterator[Any]) -> Json:
        data: Json = None
        seen = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                seen += 1
                if seen > 1:
                    self._say(event, (), "has more than one document; one file is one document")
                if event.version or event.tags:
                    self._say(event, (), "has a % directive, which is not allowed here")
            elif isinstance(event, NodeEvent):
                value = self._node(event, events, (), 0)
                data = value if seen == 1 else data
        if data is None and not self.problems:
            self.problems.append(Problem(self.file, 1, 1, "", "is empty"))
        return data

    def _node(self, event: Any, events: Iterator[Any], path: Path_, depth: int) -> Json:
        self.values[path] = self._mark(event)
        if len(self.values) > MAX_VALUES:
            raise BadFile([*self.problems, self._problem(event, path, f"has more than {MAX_VALUES} values")])
        if isinstance(event, AliasEvent):
            self._say(event, path, "is a YAML alias (*name), which is not allowed: write the value out, or use `extends`")
            return None
        if event.anchor is not None:
            self._say(event, path, "has a YAML anchor (&name), which is not allowed: write the value out, or use `extends`")
        if event.tag is not None:
            self._say(event, path, "has a YAML tag (!name), which is not allowed")
        if isinstance(event, ScalarEvent):
            return self._scalar(event, path)
        if depth >= MAX_DEPTH:
            raise BadFile([*self.problems, self._problem(event, path, f"is nested deeper than {MAX_DEPTH} levels")])
        if isinstance(event, SequenceStartEvent):
            return self._sequence(events, path, depth + 1)
        return self._mapping(events, path, depth + 1)

    def _sequence(self, events: Iterator[Any], path: Path_, depth: int) -> list[Json]:
        items: list[Json] = []
        for event in events:
            if isinstance(event, SequenceEndEvent):
                break
            items.append(self._node(event, events, (*path, len(items)), depth))
        return items

    def _mapping(self, events: Iterator[Any], path: Path_, depth: int) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            key = self._key(event, events, path, depth)
            here = (*path, key)
            if key in found:
                first = self.keys[here]
                self._say(event, here, f"stands here twice; the first is on line {first.line}")
                self._node(next(events), events, (*path, f"{key} (twice)"), depth)
                continue
            self.keys[here] = self._mark(event)
            found[key] = self._node(next(events), events, here, depth)
            if found[key] is None:
                self.values[here] = self.keys[here]  # nothing stands there, so YAML puts its place on some later line
        return found

    def _key(self, event: Any, events: Iterator[Any], path: Path_, depth: int) -> str:
        if isinstance(event, ScalarEvent):
            self._checks(event, path)
            return str(event.value)
        self._say(event, path, "has a key that is not a plain name")
        self._node(event, events, (*path, "?"), depth)
        return "?"

    def _checks(self, event: Any, path: Path_) -> None:
        if event.anchor is not None or event.tag is not None:
            self._say(event, path, "has a key with a YAML anchor or tag, which is not allowed")
        if _UNSEEN.search(event.value):
            self._say(event, path, "has a control or text-direction character in it")

    def _scalar(self, event: Any, path: Path_) -> Json:
        text: str = event.value
        if _UNSEEN.search(text):
            self._say(event, path, "has a control or text-direction character in it")
        value = text if event.style else _plain(text)
        if isinstance(value, float) and not math.isfinite(value):
            self._say(event, path, "must be a finite number")
        return value

    def _mark(self, event: Any) -> Mark:
        return Mark(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _problem(self, event: Any, path: Path_, message: str) -> Problem:
        mark = self._mark(event)
        return Problem(mark.file, mark.line, mark.column, dotted(path), message)

    def _say(self, event: Any, path: Path_, message: str) -> None:
        self.problems.append(self._problem(event, path, message))


def _plain(text: str) -> Json:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _syntax(error: Exception, text: str, file: str) -> Problem:
    """A parser's complaint in our words, without the piece of the file that the parser would quote."""
    if isinstance(error, ReaderError):
        before = text[: error.position]
        return Problem(file, before.count("\n") + 1, len(before) - before.rfind("\n"), "", "has a character that YAML forbids")
    if not isinstance(error, MarkedYAMLError):
        return Problem(file, 1, 1, "", "is not YAML that we can read")
    mark = error.problem_mark or error.context_mark
    said = str(error.problem or "is not YAML")
    unclosed = "end of stream" in said or "stream end" in said
    if unclosed and error.context_mark is not None:
        mark = error.context_mark
        said = "something that opens here is not closed before the end of the file"
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    context = f" {error.context}" if error.context and not unclosed else ""
    hint = "indent with spaces" if "\\t" in said else ""
    return Problem(file, line, column, "", f"not YAML: {said}{context}", hint)
