"""A ledger entry against what a vector says it should be, class by class and to the last digit."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import ROUND_UP, Decimal
from typing import Any

Vector = Mapping[str, Any]
_NANO = Decimal("0.000000001")
_CLASSES = ("uncached_input", "cache_read", "output_total", "reasoning")
_NAMES = {"uncached_input": "uncached", "cache_read": "cache_read", "output_total": "output", "reasoning": "reasoning"}
_SAID = frozenset({"cache_reported", "complete", "anomaly", "extra_iterations", "prompt_total"})


def differences(vector: Vector, attempt: Mapping[str, Any]) -> list[str]:
    """What is not as it should be; empty: exact."""
    expected = vector["expected"]
    if expected is None:
        return _unreported(attempt)
    if not expected.get("complete", True):
        return [*_unfinished(attempt), *_tokens(vector, attempt, skip=("output_total", "reasoning"))]
    found = [] if attempt["tokens_from"] == "provider" else [f"tokens come from {attempt['tokens_from']}"]
    return [*found, *_tokens(vector, attempt), *_iterations(expected, attempt), *_cost(vector, attempt), *_flags(expected, attempt)]


def _unreported(attempt: Mapping[str, Any]) -> list[str]:
    """No usage: neither zero nor a certain figure."""
    if attempt["tokens_from"] == "provider":
        return ["usage that was not reported is taken for the provider's"]
    certain = attempt["tokens_from"] == "none" and attempt["cost_usd"] is not None
    return [f"a cost that cannot be known is {attempt['cost_usd']}"] if certain else []


def _unfinished(attempt: Mapping[str, Any]) -> list[str]:
    """Counts that are not final are marked as an estimate."""
    return [] if attempt["tokens_from"] == "mixed" else [f"an unfinished count comes from {attempt['tokens_from']}"]


def _tokens(vector: Vector, attempt: Mapping[str, Any], skip: tuple[str, ...] = ()) -> list[str]:
    """The least list of differences over the vector's own word and what it accepts as well."""
    ways = [{**vector["expected"], **also} for also in [{}, *(vector.get("accept_also") or [])]]
    return min((list(_differing(_replaced(way, ways[0]), attempt["tokens"], skip)) for way in ways), key=len)


def _replaced(way: dict[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """A way that puts writes under another lifetime takes them from the one they stood under."""
    writes = {name for name in way if name.startswith("cache_write") and way[name] != first.get(name)}
    return {name: value for name, value in way.items() if not (writes and name.startswith("cache_write") and name not in writes)}


def _differing(expected: Mapping[str, Any], tokens: Mapping[str, Any], skip: tuple[str, ...]) -> Iterator[str]:
    writes = {name for name in expected if name.startswith("cache_write")}
    have = {name: tokens[_NAMES[name]] for name in _CLASSES} | dict(tokens["other"])
    have |= {"cache_write" if ttl == "unknown" else f"cache_write_{ttl}": count for ttl, count in tokens["cache_write"].items()}
    for name in sorted({*expected, *(n for n in have if n.startswith("cache_write") and have[n] and writes)} - _SAID - set(skip)):
        want = expected.get(name, 0)
        if (have.get(name) or 0) != want:
            yield f"{name} is {have.get(name)}, should be {want}"
    for name in ("uncached_input", "output_total"):
        if name in expected and name not in skip and have[name] is None:
            yield f"{name} is not known"


def _iterations(expected: Mapping[str, Any], attempt: Mapping[str, Any]) -> Iterator[str]:
    for each in expected.get("extra_iterations") or ():
        model = "" if each["type"] == "compaction" else each["model"]
        have = attempt["tokens"]["other"].get(f"iteration:{each['type']}:{model}:output")
        if have != each["output_total"]:
            yield f"output of the {each['type']} is {have}, should be {each['output_total']}"


def _cost(vector: Vector, attempt: Mapping[str, Any]) -> Iterator[str]:
    want, have = vector["expected_cost_usd"], attempt["cost_usd"]
    exact = None if want is None else Decimal(want).quantize(_NANO, ROUND_UP)
    if (None if have is None else Decimal(have)) != exact:
        yield f"cost is {have}, should be {exact}"


def _flags(expected: Mapping[str, Any], attempt: Mapping[str, Any]) -> Iterator[str]:
    flag = expected.get("anomaly")
    if flag and flag not in attempt.get("flags", ()):
        yield f"{flag} is not flagged"
