"""Errors as a caller's dialect tells them, and the message in those of a backend."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from gateway.dialects.openai_tap import error_text

TOO_LONG = "prompt is too long"
"""How Anthropic's clients recognise that the context is full; OpenAI's look for the code `context_length_exceeded`."""
_OPENAI_TYPES = {
    401: "authentication_error", 402: "billing_error", 403: "permission_error", 429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 403: "permission_error",
    404: "not_found_error", 405: "invalid_request_error", 408: "timeout_error", 409: "conflict_error",
    413: "request_too_large", 415: "invalid_request_error", 422: "invalid_request_error", 429: "rate_limit_error",
    503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error",
}


@dataclass(frozen=True, slots=True)
class Told:
    """An error between dialects."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None


def openai_body(told: Told) -> bytes:
    kind = _OPENAI_TYPES.get(told.status) or ("server_error" if told.status >= 500 else "invalid_request_error")
    code = told.code
    if code is None and told.status == 400 and TOO_LONG in told.message:
        code = "context_length_exceeded"
    return orjson.dumps({"error": {"message": told.message, "type": kind, "param": told.param, "code": code}})


def anthropic_body(told: Told) -> bytes:
    kind = _ANTHROPIC_TYPES.get(told.status) or ("api_error" if told.status >= 500 else "invalid_request_error")
    message = told.message
    if told.code == "context_length_exceeded" and TOO_LONG not in message:
        message = f"{TOO_LONG}: {message}"
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def from_backend(status: int, body: bytes) -> Told:
    """What a backend's error says, whatever its shape; a body that is no JSON only counts if it is a short text."""
    try:
        document: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        text = body[:500].decode("utf-8", "replace").strip()
        plain = text and text.isprintable() and not set("<\ufffd") & set(text)
        return Told(status, text if plain else f"The model backend answered {status}.")
    if not isinstance(document, dict):
        return Told(status, f"The model backend answered {status}.")
    error = document.get("error")
    detail = error if isinstance(error, dict) else document
    code, param = detail.get("code"), detail.get("param")
    return Told(
        status, error_text(document), code if isinstance(code, str) else None, param if isinstance(param, str) else None
    )
