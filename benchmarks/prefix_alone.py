"""The planner by itself against a provider's simulated cache: no gateway, no HTTP, so that many small files can be tried.

What `benchmarks.prefix` sends through the whole gateway costs the same here where nothing is normalized and no two calls come
at once: a test says so.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from benchmarks.prefix_oracle import Prices, cost_of
from benchmarks.providers.rules import Provider
from gateway import caching, dialects
from gateway.dialects import splice
from gateway.dialects.parts import conversation
from gateway.metering import prices as books
from gateway.planner import Asker, Backend, Page, Planned, Planner
from gateway.prefix.chain import chain

Bodies = Sequence[tuple[float, bytes]]
"""(seconds, request) in order of time."""


def alone(provider: Provider, bodies: Bodies, prices: Prices) -> float:
    """Cost in uncached input tokens of one client's calls, by a planner that knows nothing before."""
    planner, cache, total = Planner(caching.rates_of(books.load())), provider.make(), 0.0
    for at_s, raw in bodies:
        at_us = int(at_s * 1e6)
        page = _page(provider, raw)
        backend = Backend(provider.priced_as or "own", provider.model, None, provider.name)
        planned = planner.plan(page, Asker("bench", "client"), backend, at_us)
        used = cache.serve("", {**_changed(page, planned), "model": provider.model}, at_s)
        used.begun(at_s)
        total += cost_of(used, prices, provider.lives)
        if planned is not None:
            planner.learn(planned, read_tokens=used.read, input_tokens=used.total, at_us=at_us, written=used.written)
    return total


def untouched(provider: Provider, bodies: Bodies, prices: Prices) -> float:
    """The same calls as they are."""
    cache, total = provider.make(), 0.0
    for at_s, raw in bodies:
        used = cache.serve("", {**orjson.loads(raw), "model": provider.model}, at_s)
        used.begun(at_s)
        total += cost_of(used, prices, provider.lives)
    return total


def _page(provider: Provider, raw: bytes) -> Page:
    dialect = "anthropic_messages" if provider.wire == "anthropic" else "openai_chat"
    sketch = dialects.read(dialect, raw)
    talk = conversation("bench", sketch.model, raw, sketch.parts)
    links = chain("bench", sketch.model, sketch.parts, talk.id)
    return Page(
        dialect=dialect, body=raw, spans=sketch.spans, parts=sketch.parts, keys=links.keys, ends=links.ends, root="bench",
        session=links.session, marked=links.marked,
    )  # fmt: skip


def _changed(page: Page, planned: Planned | None) -> Mapping[str, Any]:
    fields = {} if planned is None else {name: msgspec.json.encode(value) for name, value in planned.fields.items()}
    changed: Mapping[str, Any] = orjson.loads(splice.change(page.body, page.spans, fields))
    return changed
