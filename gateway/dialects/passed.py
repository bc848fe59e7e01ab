"""What a request says that is only passed on: models, output limits, number of answers, in the words of known providers.

Fields stand at the top or in an object of settings; of several that say the same the greatest counts, and every model that is
named, since which one a provider heeds is its own affair. The bytes are read, never changed.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

from gateway.core.errors import BadRequest
from gateway.core.part import NOTHING as NO_FILES
from gateway.core.part import Attached
from gateway.dialects import splice

_IN_PATH = ("models", "model", "deployments")
_SETTINGS = (
    "generationConfig", "generation_config", "inferenceConfig", "textGenerationConfig", "parameters", "options", "config",
)  # fmt: skip
"""Objects in which Google's and Amazon's APIs and some engines have their fields."""
_OUTPUT = frozenset({
    "max_tokens", "max_completion_tokens", "max_output_tokens", "max_tokens_to_sample", "max_new_tokens", "max_gen_len",
    "maxTokens", "maxOutputTokens", "maxTokenCount", "num_predict",
})  # fmt: skip
_ANSWERS = frozenset({"n", "best_of", "candidateCount", "candidate_count", "num_generations", "sampleCount"})
_EMBEDDED = re.compile(rb'"(?:data:[a-z0-9.+/-]+;base64,)?([A-Za-z0-9+/_-]{8192,}={0,2})"')
"""An image, a file or a sound."""
_LEAST_EMBEDDED = 8_192
_FORM_MODEL = re.compile(rb'name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]+)\r\n')
"""In a multipart form."""


class Wishes(NamedTuple):
    """`models`: all that are named, the one that counts first; `output`: most tokens an answer, None where none are named."""

    models: tuple[str, ...] = ()
    output: int | None = None
    answers: int = 1


NOTHING = Wishes()


def wishes(path: str, body: bytes) -> Wishes:
    """Raises `BadRequest` for what would be a JSON object, but cannot be read as one thing only."""
    named = in_path(path)
    if body.lstrip()[:1] != b"{":
        return Wishes((*named, *[name.decode("utf-8", "replace") for name in _FORM_MODEL.findall(body)]))
    fields = list(_fields(body))
    said = [value for name, value in fields if name == "model"]
    said += [value for name, several in fields if name == "models" and isinstance(several, list) for value in several]
    models = [value for value in said if isinstance(value, str) and value]
    return Wishes((*named, *models), _most(fields, _OUTPUT), _most(fields, _ANSWERS) or 1)


def embedded(body: bytes) -> Attached:
    """What travels in a body beside its text: of what kind it is does not matter much to how many tokens it has."""
    sizes = [found.end(1) - found.start(1) for found in _EMBEDDED.finditer(body)] if len(body) > _LEAST_EMBEDDED else []
    return Attached(files=len(sizes), file_bytes=sum(sizes)) if sizes else NO_FILES


def in_path(path: str) -> tuple[str, ...]:
    """The model that an address names: it counts before one in the body."""
    parts = [unquote(part) for part in path.partition("?")[0].split("/")]
    for name, after in pairwise(parts):
        if name in _IN_PATH and after:
            return (after.partition(":")[0] if name == "models" else after,)
    return ()


def _fields(body: bytes) -> Iterator[tuple[str, Any]]:
    for name, (start, end) in splice.spans(body).items():
        if name in _SETTINGS and body[start : start + 1] == b"{":
            inner = splice.spans(body, start, end, where=name)
            yield from ((each, _value(body[slice(*place)])) for each, place in inner.items())
        else:
            yield name, _value(body[start:end]) if end - start < 1_000 else None


def _value(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the request body is not valid JSON: {error}") from None


def _most(fields: list[tuple[str, Any]], names: frozenset[str]) -> int | None:
    """The greatest whole number under one of the names; Google takes one in quotes, and some take one with a fraction of 0."""
    found = [_whole(value) for name, value in fields if name in names]
    return max((value for value in found if value > 0), default=None)


def _whole(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15
    return int(value) if number else 0
