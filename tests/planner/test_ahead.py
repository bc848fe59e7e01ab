"""The beginning that is written ahead is what other conversations had too, and its mark is the last."""
from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway import dialects
from gateway.planner import Asker, Backend, Page, Planner
from gateway.planner.values import Beginning
from gateway.prefix.chain import chain

Json = dict[str, Any]
RATES = {"input": 3_000_000, "cached": 300_000, "write_5m": 3_750_000, "write_1h": 6_000_000}
BACKEND = Backend("anthropic", "claude-sonnet-4-6", None, "pool")
TOOLS = [{"name": "t", "description": "word " * 2_000, "input_schema": {"type": "object"}}]
SYSTEM = "system " * 2_000
MARK = {"cache_control": {"type": "ephemeral"}}


def page(message: str, **fields: Any) -> Page:
    body = orjson.dumps({"model": "m", "max_tokens": 9, "tools": TOOLS, "system": SYSTEM, "messages": [{"role": "user", "content": message}], **fields})
    sketch = dialects.read("anthropic_messages", body)
    links = chain("team", "m", sketch.parts)
    return Page(dialect="anthropic_messages", body=body, spans=sketch.spans, parts=sketch.parts, keys=links.keys, ends=links.ends, root="team\0m", session=message)


def second(first: Json, then: Json) -> Beginning | None:
    planner = Planner(lambda provider, model, tier: RATES)
    planner.plan(page("one " * 50, **first), Asker("team", "app"), BACKEND, 1_000_000)
    found = planner.plan(page("two " * 50, **then), Asker("team", "app"), BACKEND, 2_000_000)
    return None if found is None else found.beginning


@pytest.mark.parametrize(("first", "then", "ends", "lives"), [
    pytest.param({}, {}, 2, ["5m", "1h"], id="tools and system prompt"),
    pytest.param({}, {"system": "another " * 2_000}, 1, ["5m", "1h"], id="the tools, where the system prompt is another"),
    pytest.param({"system": [{"type": "text", "text": SYSTEM}, {"type": "text", "text": "one"}]}, {"system": [{"type": "text", "text": SYSTEM}, {"type": "text", "text": "two"}]}, 2, ["5m", "1h"], id="all blocks but the last"),
    pytest.param({}, {"tools": [{"name": "u", "input_schema": {}}]}, None, [], id="nothing"),
    pytest.param({"tools": [], "system": "short"}, {"tools": [], "system": "short"}, None, [], id="too short to be stored"),
    pytest.param({"system": [{"type": "text", "text": SYSTEM, **MARK}]}, {"system": [{"type": "text", "text": SYSTEM, **MARK}]}, 2, ["5m"], id="the client's mark says for how long"),
    pytest.param({"system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, {"system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, 2, ["1h"], id="or its long one"),
    pytest.param({}, {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]}, None, [], id="of a conversation's first call alone"),
])  # fmt: skip
def test_a_beginning_is_what_others_had_too(first: Json, then: Json, ends: int | None, lives: list[str]) -> None:
    found = second(first, then)
    assert (None if found is None else found.first, [] if found is None else [life.name for life in found.lives]) == (ends, lives)


def test_its_prices_are_those_of_its_tokens() -> None:
    found = second({}, {})
    assert found is not None
    assert found.saved_usd == pytest.approx(found.tokens * 3.45e-6)
    assert [life.write_usd for life in found.lives] == pytest.approx([found.tokens * 3.75e-6, found.tokens * 6e-6])


@pytest.mark.parametrize(("lifetime", "ttl"), [("5m", None), ("1h", "1h"), ("of old", None)])
def test_it_is_marked_at_its_end_and_nothing_behind_it(lifetime: str, ttl: str | None) -> None:
    planner = Planner(lambda provider, model, tier: RATES)
    planned = planner.ahead(page("."), BACKEND, lifetime)
    assert planned is not None
    assert set(planned.fields) == {"tools", "system"}
    [block] = orjson.loads(bytes(planned.fields["system"] or b""))
    assert block == {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}}
    assert [each.life_s for each in planned.stored] == [3_600.0 if ttl else 300.0] * 2
    assert planned.stored[-1].key == page(".").keys[1]
