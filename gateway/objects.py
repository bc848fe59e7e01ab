"""Requests that read a fixed beginning from an object at the provider, and what such an object is made of (Gemini).

The beginning is the tools and the system messages ahead of the user's first words; a request that names an object may have
neither tools nor system messages nor a choice of tools, for those are the object's.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import orjson
from msgspec.structs import replace

from gateway.backends.fleet import Target
from gateway.core.call import Call
from gateway.core.part import Part
from gateway.dialects.parts import role_of
from gateway.planner import Page, Planned, Planner
from gateway.planner.heads import Head

_SYSTEM = frozenset({"system", "developer"})
_FORBIDDEN = ("tool_choice", "functions", "function_call", "extra_body")
"""What a request may not say that names an object."""


class Latest(NamedTuple):
    """Whose beginning it is, without the prompt itself, and the JSON of its tools and system messages."""

    call: Call
    target: Target
    model: str
    tools: bytes
    system: Sequence[bytes]


def with_object(planner: Planner, planned: Planned, page: Page, head: Head | None, now_us: int) -> Planned:
    """The same, reading the object of its beginning, if there is one."""
    if head is None or not _may(page, head):
        return planned
    found = planner.heads.object(head.name, now_us)
    if found is None:
        return replace(planned, head=head)
    rest = b"[" + page.body[page.parts[head.first].start : page.spans["messages"][1]]
    named = msgspec.json.encode({"google": {"cached_content": found}})
    fields: dict[str, msgspec.Raw | None] = dict(planned.fields)
    fields.update({"messages": msgspec.Raw(rest), "extra_body": msgspec.Raw(named)})
    if "tools" in page.spans:
        fields["tools"] = None
    receipt = {"pass": "cache_object", "place": "extra_body", "before": "", "after": found}
    return replace(planned, fields=fields, receipts=[*planned.receipts, receipt], stored=(), head=head, object=found)


def came(
    planner: Planner, planned: Planned, head: Head, call: Call, parts: Sequence[Part], target: Target, model: str,
    read: int | None,
) -> None:  # fmt: skip
    """A call with a beginning that may be stored was answered; `read`: tokens that came from a cache."""

    def latest() -> Latest:
        span = call.sketch.spans.get("tools", (0, 0))
        bare = replace(call, body=b"", sketch=replace(call.sketch, spans={}, parts=()))
        system = [call.body[part.start : part.end] for part in parts[: head.first] if part.field == "messages"]
        return Latest(bare, target, model, call.body[slice(*span)], system)

    found = None if planned.object is not None else 2 * (read or 0) >= head.tokens
    life_s = next(iter(planned.rules.lives.values()))
    planner.heads.came(head, call.at_us, life_s, read=found, latest=latest)


def made_of(latest: Latest) -> dict[str, Any] | None:
    """The request for an object, its lifetime aside; None for a beginning that cannot be said in the provider's words."""
    texts = [text for message in latest.system for text in _texts(orjson.loads(message).get("content"))]
    tools = [_declared(tool) for tool in orjson.loads(latest.tools or b"[]") or ()]
    if None in texts or None in tools:
        return None
    made: dict[str, Any] = {"model": f"models/{latest.model}"}
    if texts:
        made["systemInstruction"] = {"parts": [{"text": text} for text in texts]}
    if tools:
        made["tools"] = [{"functionDeclarations": tools}]
    return made


def _texts(content: Any) -> list[str | None]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return [None]
    return [block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None for block in content]


def _declared(tool: Any) -> dict[str, Any] | None:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    names = (("name", "name"), ("description", "description"), ("parameters", "parametersJsonSchema"))
    return {theirs: function[ours] for ours, theirs in names if function.get(ours) is not None}


def _may(page: Page, head: Head) -> bool:
    """Whether all that an object would hold stands at the beginning, and nothing that may not stand beside one is asked for."""
    if any([name in page.spans for name in _FORBIDDEN]) or page.parts[head.first].field != "messages":
        return False
    before, after = page.parts[: head.first], page.parts[head.first :]
    fixed = all([part.field == "tools" or role_of(page.body, part) in _SYSTEM for part in before])
    return fixed and not any([role_of(page.body, part) in _SYSTEM for part in after])
