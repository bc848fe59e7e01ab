"""What every kind of request can say: limits, sampling, lane, salt. JSON body in, an `Ask` for the engine out.

Fields that we do not know are ignored; a known field with a value that we cannot honour is an error that names it.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.ask import Ask
from inference.sampling import Sampling
from inference.scheduler import FAST, STANDARD, Lane

Json = Mapping[str, Any]

DEFAULT_TEMPERATURE, DEFAULT_TOP_P = 0.0, 1.0
"""Greedy where the request says nothing: a model of this size drifts into loops when it is sampled."""
DEFAULT_MAX_TOKENS = 512
"""Where the request names no limit; a loop would else go on to the end of the context."""
_LANES = {"priority": FAST, "fast": FAST} | dict.fromkeys(("default", "auto", "standard", "flex"), STANDARD)
_MOST_STOPS = 16
_MOST_SALT = 512


class ApiError(Exception):
    """An answer in OpenAI's error shape."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.retry_after: int | None = None

    def body(self) -> dict[str, Any]:
        """The JSON to send."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The client's mistake."""
    return ApiError(400, message, param=param, code=code)


@dataclass(frozen=True, slots=True)
class Requested:
    """What to generate and how the client wants it told."""

    ask: Ask
    stream: bool
    include_usage: bool


def telling(body: Json) -> tuple[bool, bool]:
    """Whether to stream, and whether to stream usage."""
    return flag(body, "stream"), flag(mapping(body, "stream_options"), "include_usage")


def check_length(prompt: list[int], context: int, where: str) -> list[int]:
    """The prompt, if there is room for it and one token more; it came from the field `where`."""
    if len(prompt) + 1 > context:
        raise bad(
            f"This model's maximum context length is {context} tokens, and your prompt has {len(prompt)}; "
            "at least one more is needed for the answer.",
            where,
            "context_length_exceeded",
        )
    return prompt


def read_ask(body: Json, prompt: list[int], context: int, vocabulary: int, logprobs: int | None) -> Ask:
    """All that chats and completions name alike."""
    if integer(body, "n", 1, 1, 128) != 1:
        raise bad("only n = 1 is supported", "n")
    most = integer(body, "max_tokens", DEFAULT_MAX_TOKENS, 1, 1 << 31)
    most = integer(body, "max_completion_tokens", most, 1, 1 << 31)
    return Ask(
        prompt=prompt,
        most=min(most, context - len(prompt)),
        lane=_lane(body),
        sampling=_sampling(body, vocabulary, logprobs),
        stops=_stops(body),
        salt=_salt(body),
        priority=integer(body, "priority", 0, -1000, 1000),
        ignore_eos=flag(body, "ignore_eos"),
    )


def _lane(body: Json) -> Lane:
    tier = body.get("service_tier")
    if tier is None:
        return STANDARD
    if not isinstance(tier, str) or tier not in _LANES:
        raise bad(f"service_tier must be one of {', '.join(_LANES)}", "service_tier")
    return _LANES[tier]


def _sampling(body: Json, vocabulary: int, logprobs: int | None) -> Sampling:
    seed = body.get("seed")
    if seed is None:
        seed = secrets.randbits(63)
    elif isinstance(seed, bool) or not isinstance(seed, int) or not -(1 << 63) <= seed < 1 << 63:
        raise bad("seed must be an integer of 64 bits", "seed")
    return Sampling(
        temperature=number(body, "temperature", DEFAULT_TEMPERATURE, 0.0, 2.0),
        top_k=max(0, integer(body, "top_k", 0, -1, vocabulary)),
        top_p=number(body, "top_p", DEFAULT_TOP_P, 0.0, 1.0) or 1e-9,
        min_p=number(body, "min_p", 0.0, 0.0, 1.0),
        presence=number(body, "presence_penalty", 0.0, -2.0, 2.0),
        frequency=number(body, "frequency_penalty", 0.0, -2.0, 2.0),
        repetition=number(body, "repetition_penalty", 1.0, 0.01, 10.0),
        bias=_bias(body, vocabulary),
        seed=seed,
        logprobs=logprobs,
    )


def _bias(body: Json, vocabulary: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in mapping(body, "logit_bias").items():
        if not key.isascii() or not key.isdigit() or int(key) >= vocabulary:
            raise bad(f"logit_bias: {key!r} is no token id", "logit_bias")
        if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
            raise bad("logit_bias: values go from -100 to 100", "logit_bias")
        bias[int(key)] = float(value)
    return bias


def _stops(body: Json) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise bad(f"stop must be a string or up to {_MOST_STOPS} of them, none empty", "stop")
    return tuple(stops)


def _salt(body: Json) -> str:
    salt = body.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str) or not 1 <= len(salt) <= _MOST_SALT:
        raise bad(f"cache_salt must be a string of 1 to {_MOST_SALT} characters", "cache_salt")
    return salt


def integer(body: Json, name: str, default: int, low: int, high: int) -> int:
    """An integer from `low` to `high`, or the default where it is missing or null."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad(f"{name} must be an integer from {low} to {high}", name)
    return value


def number(body: Json, name: str, default: float, low: float, high: float) -> float:
    """A number from `low` to `high`, or the default where it is missing or null."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise bad(f"{name} must be a number from {low} to {high}", name)
    return float(value)


def flag(body: Json, name: str) -> bool:
    """True, or false where it is missing or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad(f"{name} must be true or false", name)
    return bool(value)


def mapping(body: Json, name: str) -> Json:
    """An object, or an empty one where it is missing or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise bad(f"{name} must be an object", name)
    return value or {}
