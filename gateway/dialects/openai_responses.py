"""OpenAI responses: read, metered and relayed to backends that speak it; not translated yet, so not yet in `DIALECTS`.

A stream ends with `response.completed`, `response.incomplete` or `response.failed`, which alone carry the usage and the
tier that was served (the first events name a provisional one); there is no `[DONE]`. Fees for the provider's own tools
stand in `tool_usage`, beside `usage`.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from gateway.core.call import Sketch
from gateway.core.errors import BadRequest
from gateway.core.outcome import Observed
from gateway.core.prompt import Json, Prompt
from gateway.dialects import counts, facts, splice, sse
from gateway.dialects.openai_chat import PING as PING
from gateway.dialects.openai_chat import error_body as error_body
from gateway.dialects.openai_chat import is_error as is_error
from gateway.dialects.openai_chat import models_body as models_body
from gateway.dialects.openai_chat import stream_error as stream_error
from gateway.dialects.openai_tap import error_text, load
from gateway.dialects.openai_usage import usage as usage
from gateway.dialects.watch import Seen, Verdict, document_of

NAME, PATH = "openai_responses", "/v1/responses"
END = b""
PROMPT_FIELDS: tuple[str, ...] = ("tools", "instructions", "input")
_FINAL = ("response.completed", "response.incomplete", "response.failed")
_WORDS = ("response.output_text.delta", "response.refusal.delta", "response.function_call_arguments.delta",
          "response.reasoning_text.delta", "response.reasoning_summary_text.delta", "response.custom_tool_call_input.delta")


def sketch(body: bytes) -> Sketch:
    places = splice.spans(body)
    model = facts.required_text(body, places, "model")
    return Sketch(
        model=model,
        stream=facts.flag(body, places, "stream"),
        spans=places,
        max_output_tokens=facts.count(body, places, "max_output_tokens"),
        service_tier=facts.text(body, places, "service_tier"),
        has_tools=facts.array(body, places, "tools"),
    )


def usage_asked(body: bytes, places: splice.Spans) -> None:
    return None    # it comes unasked


def look(body: bytes) -> Observed:
    """What a whole answer says of itself. Raises Malformed."""
    seen = Seen()
    _note(seen, document_of(body))
    return seen.observed(usage)


class Tap:
    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = Seen()

    def plain(self, piece: bytes) -> bool:
        return False

    def look(self, piece: bytes) -> Verdict:
        found = sse.parse(piece)
        if found is None:
            return Verdict.IDLE
        if found.data.strip() == b"[DONE]":    # some servers add the other dialect's marker
            self.seen.ended = True
            return Verdict.END
        document = load(found)
        kind = document.get("type") or found.event
        if kind == "error":
            self.seen.error = error_text(document)
            return Verdict.ERROR
        if response := counts.part(document, "response"):
            _note(self.seen, response)
        self.seen.started = self.seen.started or (kind in _WORDS and bool(document.get("delta")))
        if kind not in _FINAL:
            return Verdict.PASS
        if self.seen.error is not None:
            return Verdict.ERROR
        self.seen.ended = True
        return Verdict.END

    def hidden(self, piece: bytes) -> bytes:
        return piece


def read_frame(piece: bytes) -> Iterator[str]:
    """What a frame adds to the answer."""
    found = sse.parse(piece)
    if found is not None and found.data.strip() != b"[DONE]":
        document = load(found)
        if document.get("type") in _WORDS and isinstance(document.get("delta"), str):
            yield document["delta"]


def parse_request(body: bytes) -> Prompt:
    _untranslated()


def render_request(prompt: Prompt) -> dict[str, Json]:
    _untranslated()


def _untranslated() -> NoReturn:
    raise BadRequest("The responses API is only served by backends that speak it.")


def _note(seen: Seen, response: Mapping[str, Any]) -> None:
    seen.response_id = response.get("id") or seen.response_id
    seen.model = response.get("model") or seen.model
    seen.tier = response.get("service_tier") or seen.tier
    if raw := counts.part(response, "usage"):
        seen.usage = {**raw, "tool_usage": response.get("tool_usage")}
    if isinstance(error := response.get("error"), dict):
        seen.error = error_text({"error": error})
    status = response.get("status")
    if status in ("completed", "incomplete"):
        seen.finish = _finish(response)
        seen.finished.add(0)


def _finish(response: Mapping[str, Any]) -> Any:
    if response.get("status") == "incomplete":
        reason = counts.part(response, "incomplete_details").get("reason")
        return "content_filter" if reason == "content_filter" else "length"
    output: Sequence[Any] = response.get("output") or ()
    calls = any(isinstance(item, dict) and item.get("type") == "function_call" for item in output)
    return "tool_use" if calls else "stop"
