"""Pydantic's errors in our words: a place in the file, what was expected, and the nearest valid word.

Where a field may have several shapes, pydantic complains for each; only the complaints of the shape that was meant are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from router_policies.problems import Problem, did_you_mean, nearest, printable, shown
from router_policies.yaml_events import Document, Path_

_TYPES: Mapping[str, str] = {
    "bool_type": "true or false", "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number",
    "string_type": "text", "list_type": "a list", "tuple_type": "a list", "set_type": "a list", "frozen_set_type": "a list",
    "dict_type": "a mapping", "model_type": "a mapping", "model_attributes_type": "a mapping", "mapping_type": "a mapping",
    "decimal_type": "a number, or a decimal number in quotes", "decimal_parsing": "a decimal number",
    "none_required": "empty", "path_type": "text",
}  # fmt: skip
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "must be more than"), "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be less than"), "less_than_equal": ("le", "must be at most"),
}  # fmt: skip
_YES_NO: Mapping[str, str] = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def complaints(document: Document, model: type[BaseModel], error: ValidationError) -> list[Problem]:
    errors = error.errors(include_url=False)
    schema = _schema(model)
    found: dict[Path_, list[dict[str, Any]]] = {}
    for one in errors:
        found.setdefault(_in_file(document.data, one["loc"], one["type"]), []).append(dict(one))
    problems = []
    for path, several in found.items():
        wrong_shape = [e for e in several if e["type"] in _TYPES]
        further_in = any(other[: len(path)] == path and len(other) > len(path) for other in found) and _branched(several, path)
        if further_in and all(e["type"] in _TYPES or isinstance(e.get("input"), dict | list) for e in several):
            continue  # the shape that was meant has its own complaints
        if len(several) > len(wrong_shape):
            several = [e for e in several if e["type"] not in _TYPES]
        elif len(wrong_shape) > 1:
            problems.append(_many_shapes(document, path, wrong_shape))
            continue
        problems += [_problem(document, schema, path, e) for e in several]
    return list(dict.fromkeys(problems))


def missing(field: str | int) -> str:
    """What is said of a field that has to be there."""
    return f"field `{field}` is missing"


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _in_file(data: Any, loc: tuple[str | int, ...], kind: str) -> Path_:
    """The part of pydantic's location that is a path in the file: names of union branches are left out."""
    path: list[str | int] = []
    for i, part in enumerate(loc):
        if _has(data, part):
            data = data[part]
        elif kind == "missing" and i == len(loc) - 1:
            pass
        else:
            continue
        path.append(part)
    return tuple(path)


def _branched(several: list[dict[str, Any]], path: Path_) -> bool:
    return any(len(e["loc"]) > len(path) for e in several)


def _many_shapes(document: Document, path: Path_, errors: list[dict[str, Any]]) -> Problem:
    wanted = " or ".join(dict.fromkeys(_TYPES[e["type"]] for e in errors))
    return document.problem(path, f"must be {wanted}, is {_kind(errors[0]['input'])}")


def _problem(document: Document, schema: dict[str, Any], path: Path_, error: dict[str, Any]) -> Problem:
    kind, context = error["type"], error.get("ctx", {})
    value = error.get("input")
    if kind == "extra_forbidden":
        name = str(path[-1])
        hint = did_you_mean(name, _fields(schema, path[:-1]))
        return document.problem(path, f"unknown field `{printable(name)}`", hint, at_key=True)
    if kind == "missing":
        return document.problem(path[:-1], missing(path[-1]), at_key=True)
    if kind in ("literal_error", "enum"):
        return _unknown_word(document, path, str(context.get("expected", "")), value)
    if kind in _TYPES:
        hint = ""
        if kind == "bool_type" and isinstance(value, str) and value.lower() in _YES_NO:
            hint = f"write {_YES_NO[value.lower()]}"
        elif isinstance(value, str) and "number" in _TYPES[kind] and any(c.isdigit() for c in value):
            hint = "write plain decimal digits, without quotes, units or leading zeros"
        return document.problem(path, f"must be {_TYPES[kind]}, is {_kind(value)}", hint)
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return document.problem(path, f"{words} {context.get(key)}")
    return document.problem(path, _in_words(kind, context, str(error["msg"])))


def _in_words(kind: str, context: Mapping[str, Any], said: str) -> str:
    match kind:
        case "finite_number":
            return "must be a finite number"
        case "string_pattern_mismatch":
            return f"must look like {context.get('pattern')}"
        case "string_too_long":
            return f"must have at most {context.get('max_length')} characters"
        case "string_too_short":
            return "must not be empty" if context.get("min_length") == 1 else "is too short"
        case "too_short":
            return f"must have at least {context.get('min_length')} entries"
        case "too_long":
            return f"must have at most {context.get('max_length')} entries"
        case "value_error" | "assertion_error":
            return said.split(", ", 1)[-1]
    return said[:1].lower() + said[1:]


def _unknown_word(document: Document, path: Path_, expected: str, value: Any) -> Problem:
    words = re.findall(r"'([^']*)'", expected)
    near = nearest(value, words) if isinstance(value, str) else None
    message = f"must be one of {', '.join(words)}"
    if near is None:
        return document.problem(path, f"{message}; is {shown(value)}" if isinstance(value, str) else
                                f"{message}; is {_kind(value)}")  # fmt: skip
    return document.problem(path, f"{message}; is `{printable(value, 32)}`", f"did you mean `{near}`?")


def _has(data: Any, part: str | int) -> bool:
    if isinstance(part, str):
        return isinstance(data, dict) and part in data
    return isinstance(data, list) and part < len(data)


def _kind(value: Any) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
    return "a mapping"


def _fields(schema: dict[str, Any], path: Path_) -> list[str]:
    """The field names that the model knows at this path, over all shapes it may have there."""
    nodes = [schema]
    for part in path:
        nodes = [inner for node in nodes for shape in _shapes(schema, node) for inner in _step(shape, part)]
    return [name for node in nodes for shape in _shapes(schema, node) for name in shape.get("properties", {})]


def _shapes(schema: dict[str, Any], node: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(node, dict):
        return
    if "$ref" in node:
        yield from _shapes(schema, schema.get("$defs", {}).get(node["$ref"].rsplit("/", 1)[-1]))
    for word in ("anyOf", "oneOf", "allOf"):
        for inner in node.get(word, ()):
            yield from _shapes(schema, inner)
    yield node


def _step(shape: dict[str, Any], part: str | int) -> Iterator[Any]:
    if isinstance(part, int):
        yield shape.get("items")
        yield from shape.get("prefixItems", ())
    elif part in shape.get("properties", {}):
        yield shape["properties"][part]
    else:
        yield shape.get("additionalProperties")
        yield from shape.get("patternProperties", {}).values()
