"""Requests as the normalizer sees them."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway import dialects
from gateway.core.part import Part
from gateway.dialects.parts import conversation
from gateway.normalize import Memory, Normalized, View, normalize, restored


def view(request: dict[str, Any] | bytes, level: str = "equivalent", dialect: str = "openai_chat", **more: Any) -> View:
    body = request if isinstance(request, bytes) else json.dumps({"model": "m", **request}).encode()
    sketch = dialects.read(dialect, body)
    parts = sketch.parts
    domain = more.pop("domain", "team")
    return View(
        domain=domain, level=level, dialect=dialect, model="m", body=body, spans=sketch.spans, order=dialects.order(dialect),
        parts=parts, talk=conversation(domain, "m", body, parts), **more,
    )  # fmt: skip


def run(memory: Memory, request: dict[str, Any] | bytes, level: str = "equivalent", dialect: str = "openai_chat", **more: Any) -> Normalized:
    """Normalizes, and checks what must hold of every request: places are right, receipts rebuild the original."""
    asked = view(request, level, dialect, **more)
    done = normalize(memory, asked)
    assert restored(done.body, done.changes) == asked.body
    assert done.spans == dialects.read(dialect, done.body).spans
    assert places_of(done.parts) == places_of(dialects.read(dialect, done.body).parts)
    for change in done.changes:
        assert change.before != change.after or "left" in change.receipt or change.receipt["pass"] == "arm"
    return done


def places_of(parts: Sequence[Part]) -> list[tuple[Any, ...]]:
    return [(*part.span, part.field, part.item, part.block.named()) for part in parts]


def user(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def assistant(text: str = "yes?") -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}
