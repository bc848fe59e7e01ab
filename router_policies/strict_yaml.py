"""A YAML file -> a pydantic model, strictly, with every problem's line, column and the nearest valid word.

Used for team files and for tollway.yaml. Values are read as the file types them: no true for 1, no "5" for 5. A value never
gets into a message, as it may be a secret; a word is named only where it is close to a valid one.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from router_policies.complaints import complaints
from router_policies.problems import BadFile, Problem, did_you_mean, nearest
from router_policies.yaml_events import MAX_BYTES, MAX_DEPTH, Document, Mark, dotted, read

__all__ = [
    "MAX_BYTES", "MAX_DEPTH", "BadFile", "Document", "Mark", "Problem",
    "did_you_mean", "dotted", "load", "nearest", "read_document", "validate",
]  # fmt: skip

M = TypeVar("M", bound=BaseModel)


def load(source: Path | str | bytes, model: type[M], name: str | None = None) -> M:
    """Read and check a file (a Path) or a text. Raises BadFile, and nothing else, for anything wrong with it."""
    return validate(read_document(source, name), model)


def read_document(source: Path | str | bytes, name: str | None = None) -> Document:
    """The file as plain values with places; raises BadFile only where it cannot be read to its end."""
    file = name or (str(source) if isinstance(source, Path) else "<text>")
    raw = _bytes(source, file)
    if len(raw) > MAX_BYTES:
        raise BadFile([Problem(file, 1, 1, "", f"is larger than {MAX_BYTES} bytes")])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise BadFile([Problem(file, line, column, "", "is not UTF-8", "save it as UTF-8")]) from None
    return read(text, file)


def validate(document: Document, model: type[M]) -> M:
    """Raises BadFile with all problems of the document: its own, and those against the model."""
    problems = list(document.problems)
    if not isinstance(document.data, dict):
        if not problems:
            problems.append(document.problem((), "must be a mapping of fields at the top", "lines such as `team: search`"))
        raise BadFile(problems)
    try:
        valid = model.model_validate_json(json.dumps(document.data), strict=True, extra="forbid")
    except ValidationError as error:
        told = {(p.file, p.line, p.column) for p in problems}
        problems += [p for p in complaints(document, model, error) if (p.file, p.line, p.column) not in told]
    if problems:
        raise BadFile(problems)
    return valid


def _bytes(source: Path | str | bytes, file: str) -> bytes:
    if isinstance(source, bytes):
        return source
    if isinstance(source, str):
        return source.encode("utf-8", "surrogatepass")
    try:
        if not stat.S_ISREG(source.stat().st_mode):
            raise BadFile([Problem(file, 1, 1, "", "is not a regular file")])
        with source.open("rb") as opened:
            return opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadFile([Problem(file, 1, 1, "", f"cannot be read: {error.strerror or type(error).__name__}")]) from None
