"""Files are not trusted: the errors that say what is wrong with one, and fields read by type and range."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

T = TypeVar("T")
Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e12)]


class BadFile(ValueError):
    """A model's file cannot be used; the text says why."""


class NotGGUF(BadFile):
    """The file does not start like a GGUF file of a version we know."""


class Truncated(BadFile):
    """The file promises more than it holds."""


class Damaged(BadFile):
    """Numbers or names that no model has."""


class BadValue(BadFile):
    """A field holds what it cannot hold: an unknown type, a duplicate name, a shape that does not fit."""


class MissingKey(BadFile):
    """A file or a tensor that the model needs is not there."""


def shaped(raw: object, shape: type[T], where: str) -> T:
    """What a file says, as a type that names every field we use and its range. Raises `BadValue` with the field's name."""
    try:
        return msgspec.convert(raw, shape)
    except msgspec.ValidationError as error:
        raise BadValue(f"{where}: {error}") from error


def read_json(path: Path) -> Any:
    """A file's JSON. Raises `MissingKey` where there is none, `BadValue` where it is none."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingKey(f"{path.parent} has no {path.name}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"{path.name} is no JSON: {error}") from error
