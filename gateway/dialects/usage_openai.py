"""Counts of OpenAI's shapes where no dialect of ours is spoken: chat, responses (in their last event too), embeddings."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects import openai_tap, openai_usage
from gateway.dialects.counts import part
from gateway.dialects.openai_usage import usage as usage

Raw = Mapping[str, Any]


def find(document: Raw) -> Raw | None:
    holder = _holder(document)
    raw = openai_usage.find(holder)
    if raw is None or not ("prompt_tokens" in raw or "input_tokens" in raw):
        return None
    return openai_usage.of_response(holder) or raw


def model(document: Raw) -> str | None:
    found = _holder(document).get("model")
    return found if isinstance(found, str) else None


def tier(document: Raw) -> str | None:
    return openai_tap.tier(_holder(document), find(document))


def _holder(document: Raw) -> Raw:
    return part(document, "response") or document
