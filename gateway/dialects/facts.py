"""Reading single fields off a body by their places: strict types, and errors that name the field."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from gateway.core.errors import BadRequest
from gateway.dialects.splice import Spans

MAX_TOKENS = 1 << 53
"""More than any model gives; beyond it a hold could not be counted exactly."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]

FORBIDDEN = ("api_base", "base_url", "api_key", "api_version", "extra_headers", "extra_body")
"""Fields with which callers of other gateways steer where a key goes: they never travel and never steer."""


class MissingField(BadRequest):
    code = "missing_field"


def refuse(param: str, what: str) -> BadRequest:
    """For what the backend's dialect has no word for."""
    return BadRequest(f"{param}: {what} cannot be passed on to the model backend that serves this call.", param=param)


class Usual(msgspec.Struct, gc=False):
    """What the hot path wants to know of a body whose fields have the types that they should have."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    stream: bool | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    max_output_tokens: _Count | None = None
    service_tier: str | None = None
    previous_response_id: str | None = None


def usual(values: Mapping[str, Any] | None) -> Usual | None:
    """All of it in one step; None: look closely, to say what is wrong. `values`: the body's, decoded one deep."""
    try:
        return None if values is None else msgspec.convert(values, Usual)
    except msgspec.ValidationError:
        return None


def value(body: bytes, places: Spans, key: str) -> Any:
    """A decoded top-level value; None where it is absent or null. Raises `BadRequest`, as for a number beyond all doubles."""
    place = places.get(key)
    if place is None:
        return None
    try:
        return msgspec.json.decode(body[place[0]:place[1]])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadRequest(f"{key} holds something that cannot be read.", param=key) from error


def text(body: bytes, places: Spans, key: str) -> str | None:
    found = value(body, places, key)
    if found is not None and type(found) is not str:
        raise BadRequest(f"{key} must be a string.", param=key)
    return found


def flag(body: bytes, places: Spans, key: str) -> bool:
    found = value(body, places, key)
    if found is not None and type(found) is not bool:
        raise BadRequest(f"{key} must be true or false.", param=key)
    return bool(found)


def count(body: bytes, places: Spans, key: str, least: int = 0) -> int | None:
    """A whole number; text, true, fractions, negatives and absurd sizes are refused."""
    try:
        found = value(body, places, key)
    except BadRequest:
        found = ""
    if found is None:
        return None
    if type(found) is not int or not least <= found <= MAX_TOKENS:
        raise BadRequest(f"{key} must be a whole number of at least {least}.", param=key)
    return found


def required_text(body: bytes, places: Spans, key: str) -> str:
    found = text(body, places, key)
    if not found:
        raise MissingField(f"{key} is required and must be a non-empty string.", param=key)
    return found


def array(body: bytes, places: Spans, key: str, *, required: bool = False) -> bool:
    """Whether the field holds an array with something in it, seen from its brackets alone."""
    place = places.get(key)
    if place and body[place[0]:place[0] + 1] == b"[":
        return place[1] - place[0] > 64 or bool(body[place[0] + 1:place[1] - 1].strip())
    if required:
        raise MissingField(f"{key} is required and must be an array.", param=key)
    if place and body[place[0]:place[1]] != b"null":
        raise BadRequest(f"{key} must be an array.", param=key)
    return False
