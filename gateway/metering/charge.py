"""One row times one usage: the sum of products, and what has no price.

Names in `TokenUsage.other` and what they are:
- parts of a class at a rate of their own: `audio_in` (of uncached), `cached_audio_in` (of cache_read), `audio_out`, `image_out`
  (of output); images as input, `image_in` (of the whole prompt) and `cached_image_in`, cost what text costs unless the row
  says otherwise;
- `tool_prompt`: tokens beside the prompt, at the input rate;
- counted: `web_search_requests`, `file_search_calls`, at the row's fee, and the same as seen in the answer's items, which cost
  nothing where the row has no fee (own engines have such items, too); `reported_fee_nanos`: nano-dollars that the
  provider names as a fee of its own;
- `iteration:TYPE:MODEL:CLASS`: tokens of further calls inside an answer, each at its own model's price;
- of interest, not money: `INFORMATIVE`. Any other name with a count makes the cost unknown.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from gateway.core.money import nanos_from_picos
from gateway.core.usage import TokenUsage
from gateway.metering.rows import Region, Row

_PARTS = {
    "audio_in": "input", "cached_audio_in": "cached", "cached_image_in": "cached", "audio_out": "output", "image_out": "output",
    "image_in": "input", "tool_prompt": "input",
}
"""Parts by the class they stand in (`tool_prompt` stands beside its class, `image_in` across two)."""
ITERATION = "iteration:"
INFORMATIVE = frozenset({
    "accepted_prediction", "rejected_prediction", "web_fetch_requests", "code_execution_requests", "tool_search_requests",
    "text_in", "text_out", "web_search_items", "file_search_items",
})  # fmt: skip
WRITES = {"unknown": ("write", "write_5m", "write_30m"), "5m": ("write_5m", "write"), "30m": ("write_30m", "write")}
"""Columns that price a cache write of that lifetime, the best first; else `write_` and the lifetime."""
_SEEN = {"web_search_items": "web_search_requests", "file_search_items": "file_search_calls"}
_AFRESH = {"cached": "input", "cached_audio_in": "audio_in", "cached_image_in": "image_in"}
"""The rate a token would have had if nothing had been cached; cache writes count as input too."""


class Priced(msgspec.Struct, frozen=True, gc=False):
    """What usage cost. `cost_nanos` None: not known, `missing` says why; `floor_nanos` is then the part that is certain."""

    cost_nanos: int | None
    rows: tuple[str, ...] = ()
    uncached_cost_nanos: int | None = None
    """What it would have cost had every prompt token been computed afresh."""
    missing: tuple[str, ...] = ()
    floor_nanos: int = 0


def priced(row: Row, region: Region | None, usage: TokenUsage) -> Priced:
    """What the usage costs by the row, with the surcharge of a region; rounded once, upwards."""
    rates = row.rates
    if region is None and not (usage.flags or usage.other or usage.cache_write):
        found = _plain(row, usage)
        if found is not None:
            return found
    missing = [flag for flag in usage.flags if "_exceeds_" in flag]
    picos = afresh = fees = 0
    for name, tokens in _lines(row, usage, missing):
        if not tokens:
            continue
        fresh = rates.get("input" if name.startswith("write") else _AFRESH.get(name, name))
        rate = rates.get(name, fresh if name in _AFRESH else None)     # no price for cached tokens: the full one, never none
        if rate is None or fresh is None:
            missing.append(name)
        else:
            picos += tokens * rate
            afresh += tokens * fresh
    for name, count in usage.other.items():
        unit = _SEEN.get(name, name)
        if name == "reported_fee_nanos":
            fees += count * 1000
        elif unit in row.fees:
            fees += count * row.fees[unit]
        elif count and name not in _PARTS and name not in INFORMATIVE:
            missing.append(name)
    ids: tuple[str, ...] = (row.id,)
    if region is not None:
        ids = (row.id, f"{row.provider}@region:{region.region}x{region.num}/{region.den}")
        picos, afresh, fees = picos * region.num, afresh * region.num, fees * region.den
    den = region.den if region else 1
    cost, full = nanos_from_picos(-(-(picos + fees) // den)), nanos_from_picos(-(-(afresh + fees) // den))
    if missing:
        return Priced(None, ids, None, tuple(missing), cost)
    return Priced(cost, ids, full)


def _plain(row: Row, usage: TokenUsage) -> Priced | None:
    """The same for prompt, cached prompt and output and nothing else, as nearly all usage is; None: look closely."""
    into, out = row.rates.get("input"), row.rates.get("output")
    uncached, read, output = usage.uncached, usage.cache_read, usage.output
    if uncached is None or output is None or into is None or out is None:
        return None
    fresh = uncached * into + output * out
    if not read:
        cost = nanos_from_picos(fresh)
        return Priced(cost, (row.id,), cost)
    cost = nanos_from_picos(fresh + read * row.rates.get("cached", into))
    return Priced(cost, (row.id,), nanos_from_picos(fresh + read * into))


def split_iterations(model: str, usage: TokenUsage) -> list[tuple[str, TokenUsage]]:
    """The answer's own usage, and that of each further call inside it, with the model of each."""
    inner: dict[str, dict[str, int]] = {}
    for name, tokens in usage.other.items():
        if name.startswith(ITERATION):
            at, _, part = name.split(":", 2)[2].rpartition(":")
            counts = inner.setdefault(at or model, {})
            counts[part] = counts.get(part, 0) + tokens
    own = replace(usage, other={name: n for name, n in usage.other.items() if not name.startswith(ITERATION)})
    return [(model, own), *((at, TokenUsage(
        uncached=c.get("uncached", 0), cache_read=c.get("cache_read", 0), cache_write={"unknown": c.get("cache_write", 0)},
        output=c.get("output", 0))) for at, c in inner.items())]


def total(parts: Iterable[Priced]) -> Priced:
    """The sum; unknown where a part is."""
    all_parts = tuple(parts)
    rows = tuple(dict.fromkeys(row for part in all_parts for row in part.rows))
    missing = tuple(gap for part in all_parts for gap in part.missing)
    costs = [part.cost_nanos if part.cost_nanos is not None else part.floor_nanos for part in all_parts]
    if missing:
        return Priced(None, rows, None, missing, sum(costs))
    return Priced(sum(costs), rows, sum(part.uncached_cost_nanos or 0 for part in all_parts))


def _lines(row: Row, usage: TokenUsage, missing: list[str]) -> list[tuple[str, int]]:
    """The usage as (rate's name, tokens): classes that do not overlap, parts with a rate of their own taken out."""
    if usage.uncached is None:
        missing.append("uncached tokens")
    output = None if "output_provisional" in usage.flags else usage.output
    if output is None and "output" in row.rates:
        missing.append("output tokens")
    left = {"input": usage.uncached or 0, "cached": usage.cache_read or 0, "output": output or 0}
    if not usage.other and not usage.cache_write:
        return list(left.items())
    parts = list(_parts(row.rates, usage, left, missing))
    left["input"] += usage.other.get("tool_prompt", 0)
    found = [*parts, *left.items()]
    for ttl, tokens in usage.cache_write.items():
        names = WRITES.get(ttl, (f"write_{ttl}",))
        found.append((next((name for name in names if name in row.rates), names[0]), tokens))
    return found


def _parts(rates: Mapping[str, int], usage: TokenUsage, left: dict[str, int], missing: list[str]) -> Iterator[tuple[str, int]]:
    for name, inside in _PARTS.items():
        tokens = usage.other.get(name, 0)
        if not tokens or name == "tool_prompt" or (name not in rates and inside != "output" and "image" in name):
            continue
        if name == "image_in" and usage.cache_read:
            if "cached_image_in" not in usage.other:
                missing.append("image_in by cached and fresh")
            tokens -= usage.other.get("cached_image_in", 0)
        if tokens > left[inside] or tokens < 0:
            missing.append(f"{name} exceeds {inside}")
            continue
        left[inside] -= tokens
        yield name, tokens
