"""Counts of Anthropic's shape where the dialect is not spoken, for instance its models behind another provider's paths.

The output count in a stream's first event is a placeholder; the last event's counts are final.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from gateway.core.usage import TokenUsage
from gateway.dialects import anthropic_usage
from gateway.dialects.counts import part

Raw = Mapping[str, Any]
_PLACEHOLDER = "output_provisional"


def find(document: Raw) -> Raw | None:
    """The usage of a message or of a stream's first or last event."""
    kind = str(document.get("type"))
    if not kind.startswith("message"):
        return None
    raw = part(document, "usage") or part(part(document, "message"), "usage")
    return {**raw, _PLACEHOLDER: kind == "message_start"} if raw else None


def usage(raw: Raw) -> TokenUsage:
    counted = anthropic_usage.usage(raw)
    return replace(counted, flags=(*counted.flags, _PLACEHOLDER)) if raw.get(_PLACEHOLDER) else counted


def model(document: Raw) -> str | None:
    found = document.get("model") or part(document, "message").get("model")
    return found if isinstance(found, str) else None


def tier(document: Raw) -> str | None:
    raw = find(document)
    return None if raw is None else anthropic_usage.tier(raw)
