"""Errors of Litestar's paths -> JSON in the caller's dialect; the front renders its own."""
from __future__ import annotations

import logging
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from gateway import dialects
from gateway.core import errors
from gateway.ledger.sql import is_away
from gateway.web.front import COUNTED, DIALECT_OF_PATH, error_headers
from gateway.web.routes import dialect_of

_log = logging.getLogger("tollway.web")
_MODEL_PATHS = frozenset({*DIALECT_OF_PATH, COUNTED, "/v1/models"})
_BY_STATUS: dict[int, type[errors.GatewayError]] = {
    400: errors.BadRequest, 401: errors.Unauthorized, 403: errors.Forbidden, 404: errors.NotFound,
    413: errors.TooLarge, 415: errors.UnsupportedMedia,
}  # fmt: skip


def on_gateway_error(request: Request[Any, Any, Any], error: errors.GatewayError) -> Response[bytes]:
    body = dialects.render_error(dialect_of(request), error)
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return Response(body, status_code=error.status, headers=headers, media_type="application/json")


def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Litestar's own: unknown paths, wrong methods, bodies that do not fit."""
    path, kind = request.url.path, _BY_STATUS.get(error.status_code, errors.GatewayError)
    if isinstance(error, NotFoundException):
        meant = _meant(path)
        way = f"did you mean {meant}? Check the base URL" if meant else "docs/api.md lists the paths"
        text = f"there is nothing at {path[:100]}; {way}"
    elif isinstance(error, MethodNotAllowedException):
        allow = (error.headers or {}).get("allow", "")
        return on_gateway_error(request, errors.MethodNotAllowed.of(f"{path[:100]} does not take {request.method}", allow))
    elif error.status_code < 500:
        text = _what_is_wrong(error)
    else:
        text = "the gateway failed on this request; its log says why"
    return on_gateway_error(request, kind(text))


def on_database_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """While it is away nothing is changed: an audit row is written before each change, in the same transaction."""
    if not is_away(error):
        return on_any_error(request, error)
    _log.warning("%s: the database is away (%s)", request.url.path, type(error).__name__)
    refusal = errors.Overloaded("the database is away; calls go on, but nothing can be looked up or changed", retry_after_s=5)
    refusal.code = "database_unavailable"
    return on_gateway_error(request, refusal)


def on_too_deep(request: Request[Any, Any, Any], error: RecursionError) -> Response[bytes]:
    """Litestar's decoder gave up on nested JSON."""
    refusal = errors.BadRequest("the body's JSON is nested too deeply")
    refusal.code = "too_deep"
    return on_gateway_error(request, refusal)


def on_any_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    _log.error("a request failed inside the gateway", exc_info=error)
    return on_gateway_error(request, errors.GatewayError("the gateway failed on this request; its log says why"))


def _meant(path: str) -> str | None:
    """The model path that a slip in a base URL has led astray: a `/v1` too few or too many, a slash too many, a prefix."""
    steps = [step for step in path.lower().split("/") if step]
    ends = ("/v1/" + "/".join(steps[at:]) for at in range(len(steps)))
    return next((end for end in ends if end in _MODEL_PATHS), None)


def _what_is_wrong(error: HTTPException) -> str:
    extra = error.extra if isinstance(error.extra, list) else []
    places = [f"{e.get('key', 'body')}: {e.get('message', '')}" for e in extra if isinstance(e, dict)]
    return "; ".join(places) or error.detail
