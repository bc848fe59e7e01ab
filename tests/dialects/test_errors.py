from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway import dialects
from gateway.core import errors
from gateway.core.errors import GatewayError


def subclasses(kind: type[GatewayError]) -> list[type[GatewayError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in subclasses(child))]


@pytest.mark.parametrize("kind", [each for each in subclasses(GatewayError) if each.__module__ == errors.__name__], ids=lambda kind: kind.__name__)
def test_every_error_has_the_callers_shape(kind: type[GatewayError]) -> None:
    """One body per dialect, the message in the place where its SDK looks for it."""
    error = kind("what went wrong", param="model")
    openai = orjson.loads(dialects.render_error("openai_chat", error))["error"]
    assert (openai["message"], openai["param"], openai["code"]) == ("what went wrong", "model", kind.code)
    anthropic = orjson.loads(dialects.render_error("anthropic_messages", error))
    assert anthropic["type"] == "error"
    assert anthropic["error"]["message"].endswith("what went wrong")


@pytest.mark.parametrize(("error", "openai", "anthropic"), [
    (errors.BadRequest("x"), "invalid_request_error", "invalid_request_error"), (errors.Unauthorized("x"), "authentication_error", "authentication_error"),
    (errors.BudgetExceeded("x"), "billing_error", "billing_error"), (errors.Forbidden("x"), "permission_error", "permission_error"),
    (errors.ModelNotFound("x"), "invalid_request_error", "not_found_error"), (errors.TooLarge("x"), "invalid_request_error", "request_too_large"),
    (errors.RateLimited("x"), "rate_limit_error", "rate_limit_error"), (errors.UpstreamError("x"), "server_error", "api_error"),
    (errors.Overloaded("x"), "server_error", "overloaded_error"), (errors.UpstreamTimeout("x"), "server_error", "timeout_error"),
])
def test_types_by_status(error: GatewayError, openai: str, anthropic: str) -> None:
    """Clients choose by the type whether to try again."""
    assert orjson.loads(dialects.render_error("openai_chat", error))["error"]["type"] == openai
    assert orjson.loads(dialects.render_error("anthropic_messages", error))["error"]["type"] == anthropic


OPENAI = {"error": {"message": "no such model", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}}
ANTHROPIC = {"type": "error", "error": {"type": "not_found_error", "message": "no such model"}, "request_id": "req_1"}


@pytest.mark.parametrize(("dialect", "body"), [("openai_chat", OPENAI), ("anthropic_messages", ANTHROPIC)])
def test_an_error_of_the_same_dialect_passes_as_it_is(dialect: str, body: dict[str, Any]) -> None:
    """Byte for byte."""
    raw = orjson.dumps(body)
    assert dialects.upstream_error(dialect, dialect, 404, raw) is raw


@pytest.mark.parametrize(("client", "upstream", "body"), [
    ("openai_chat", "anthropic_messages", orjson.dumps(ANTHROPIC)), ("anthropic_messages", "openai_chat", orjson.dumps(OPENAI)),
    ("openai_chat", "openai_chat", b'{"detail":"no such model"}'), ("openai_chat", "openai_chat", b'{"error":"no such model"}'),
    ("anthropic_messages", "anthropic_messages", b'{"message":"no such model"}'), ("openai_chat", "openai_chat", b"no such model\n"),
])
def test_any_other_error_keeps_its_message(client: str, upstream: str, body: bytes) -> None:
    """It gets the client's shape."""
    shown = orjson.loads(dialects.upstream_error(client, upstream, 404, body))
    assert dialects.DIALECTS[client].is_error(shown)
    assert shown["error"]["message"] == "no such model"


@pytest.mark.parametrize("body", [b"", b"<html><h1>nginx at 10.0.0.1</h1></html>", b"\xff\xfe", b"[]", b"a\x00b"])
def test_what_is_no_error_becomes_one(dialect: str, body: bytes) -> None:
    """A page of some proxy on the way is not shown to the caller."""
    shown = orjson.loads(dialects.upstream_error(dialect, dialect, 502, body))
    assert shown["error"]["message"] == "The model backend answered 502."


def test_a_full_context_is_recognised_on_the_other_side() -> None:
    """One vendor's clients look for a code, the other's for words."""
    shown = orjson.loads(dialects.upstream_error("openai_chat", "anthropic_messages", 400, b'{"type":"error","error":{"message":"prompt is too long: 9 > 8"}}'))
    assert shown["error"]["code"] == "context_length_exceeded"
    shown = orjson.loads(dialects.upstream_error("anthropic_messages", "openai_chat", 400, b'{"error":{"message":"9 > 8","code":"context_length_exceeded"}}'))
    assert shown["error"]["message"] == "prompt is too long: 9 > 8"
