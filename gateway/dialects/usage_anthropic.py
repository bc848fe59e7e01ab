"""Counts of Anthropic's shape where the dialect is not spoken, for instance its models behind another provider's paths."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import anthropic_usage
from gateway.dialects.anthropic_usage import usage as usage
from gateway.dialects.counts import part

Raw = Mapping[str, Any]


def find(document: Raw) -> Raw | None:
    """The usage of a message or of a stream's first or last event."""
    if not str(document.get("type")).startswith("message"):
        return None
    return part(document, "usage") or part(part(document, "message"), "usage") or None


def model(document: Raw) -> str | None:
    found = document.get("model") or part(document, "message").get("model")
    return found if isinstance(found, str) else None


def tier(document: Raw) -> str | None:
    raw = find(document)
    return None if raw is None else anthropic_usage.tier(raw)
