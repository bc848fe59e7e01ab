"""What can go wrong for a caller, as one tree; a dialect turns an error into its own JSON shape.

    GatewayError
      BadRequest 400          malformed JSON, a field out of range; `param` names the field
        ContextLengthExceeded
      Unauthorized 401        no key, an unknown or an expired one
      BudgetExceeded 402      a budget is spent; agents retry 429 for long, so it is not one
      Forbidden 403           the key is good, the policy says no
      NotFound 404            unknown path, model or call
      MethodNotAllowed 405
      RequestTimeout 408      the body did not arrive in time
      StillRunning 409        the call with this Idempotency-Key
      TooLarge 413            body over the limit
      UnsupportedMedia 415    a content type or encoding that we do not read
      IdempotencyMismatch 422, AlreadyDone 422
      UpgradeRefused 426      a WebSocket where only HTTP is spoken; coding clients fall back to it
      RateLimited 429
      UpstreamError 502       the backend could not be reached, broke off or answered nonsense
      Overloaded 503
      NotBooked 503           the answer is there, the journal's disk is not: it is not given out
      UpstreamTimeout 504     the backend did not answer in time

The text of an error reaches the caller: it holds no key, no host and no path of ours.
"""
from __future__ import annotations

from collections.abc import Sequence


class GatewayError(Exception):
    """Base of all errors that a caller may see."""

    status = 500
    code = "internal_error"
    retry = False
    """Whether trying the same call again may help; else the answer says `x-should-retry: false`."""

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        """What the answer says of the call beside it: its id, where it went, what it cost."""


class BadRequest(GatewayError):
    status, code = 400, "invalid_request"


class ContextLengthExceeded(BadRequest):
    code = "context_length_exceeded"


class Unauthorized(GatewayError):
    status, code = 401, "invalid_api_key"


class BudgetExceeded(GatewayError):
    status, code = 402, "budget_exceeded"


class Forbidden(GatewayError):
    status, code = 403, "forbidden"


class NotFound(GatewayError):
    status, code = 404, "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    status, code = 405, "method_not_allowed"

    @classmethod
    def of(cls, message: str, allow: str) -> MethodNotAllowed:
        """With the header that names the methods there are, as HTTP wants it."""
        error = cls(message)
        error.headers = [(b"allow", allow.encode("ascii"))]
        return error


class StillRunning(GatewayError):
    status, code, retry = 409, "idempotency_in_progress", True


class IdempotencyMismatch(GatewayError):
    status, code = 422, "idempotency_mismatch"


class AlreadyDone(GatewayError):
    status, code = 422, "already_done"


class RequestTimeout(GatewayError):
    status, code = 408, "request_timeout"


class TooLarge(GatewayError):
    status, code = 413, "request_too_large"


class UnsupportedMedia(GatewayError):
    status, code = 415, "unsupported_media_type"


class UpgradeRefused(GatewayError):
    status, code = 426, "upgrade_refused"


class RateLimited(GatewayError):
    status, code, retry = 429, "rate_limit_exceeded", True


class UpstreamError(GatewayError):
    status, code = 502, "upstream_error"


class Overloaded(GatewayError):
    status, code, retry = 503, "overloaded", True


class NotBooked(GatewayError):
    status, code = 503, "journal_unavailable"


class UpstreamTimeout(GatewayError):
    status, code, retry = 504, "upstream_timeout", False
