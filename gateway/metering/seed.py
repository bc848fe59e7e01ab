"""Writes `prices.toml` from the data of the installed genai-prices package: `python -m gateway.metering.seed`.

Reads nothing but that package (MIT) and our hand-kept `overlay.toml`, whose rows win. What would surprise you: genai-prices
matches names by prefix, which gives a new model an old one's price; here a prefix becomes one exact name (dates after it
are understood anyway). Where it lets a tier fall back to the standard long-context price, the row ends at that bound.
"""
from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from importlib.metadata import version
from typing import Any

from gateway.metering.prices import BUILT_IN, _names
from gateway.metering.rows import FEES, RATES, read

PROVIDERS = {
    "openai": "openai", "anthropic": "anthropic", "google": "google", "deepseek": "deepseek", "x-ai": "x-ai",
    "mistral": "mistral", "groq": "groq", "moonshotai": "moonshot", "fireworks": "fireworks", "together": "together",
    "cohere": "cohere", "cerebras": "cerebras",
}
"""Providers that we take over, and what we call them."""
_COLUMNS = {
    "input_mtok": "input", "cache_read_mtok": "cached", "cache_write_mtok": "write", "cache_write_1h_mtok": "write_1h",
    "output_mtok": "output", "input_audio_mtok": "audio_in", "cache_audio_read_mtok": "cached_audio_in",
    "output_audio_mtok": "audio_out", "input_image_mtok": "image_in", "cache_image_read_mtok": "cached_image_in",
    "output_image_mtok": "image_out", "web_searches_kcount": "web_search", "storage_searches_kcount": "file_search",
}
_SHORT_WRITE = {"anthropic": "write_5m", "google": "write_5m", "moonshot": "write_5m", "openai": "write_30m"}
_TIERS = {"priority": "priority", "flex": "flex", "batch": "batch"}
_WRITE_12H = 2
"""OpenAI writes for 12 hours cost 2.5 times input where those for 30 minutes cost 1.25 times (provider-caching.md 4.2)."""
_AS_TEXT = {"audio_in": "input", "cached_audio_in": "cached"}
"""Gemini models without a price for audio charge it as text (provider-caching.md 8.3)."""
_CACHED_AS_INPUT = ("together",)
"""Providers that bill cached input at the normal rate where no cached price is listed."""
_DISPUTED = frozenset({"mistral-large-latest", "mistral-medium"})
"""Moving names on which genai-prices and litellm disagree: unknown until somebody has looked at the provider's page."""

Prices = dict[str, Any]
Entry = dict[str, Any]


def from_package() -> str:
    """The text of a price file made from the installed genai-prices package. Raises ImportError where it is not installed."""
    providers = import_module("genai_prices.data").providers    # loaded when asked for: it is large, and an optional extra
    kept = [row for section in read(BUILT_IN[1]).values() for row in section.rows]
    peaks = {f"{row.provider}/{row.model}@launch#hours" for row in kept if row.hours}
    return render(providers, {row.id for row in kept} | peaks)


def main() -> int:
    """Rewrites prices.toml and says what it holds."""
    target, text = BUILT_IN[0], from_package()
    target.write_text(text, "utf-8")
    print(f"{target}: {text.count('{model')} rows, {len(text) // 1024} KiB")
    return 0


def render(known: Iterable[Any], taken: set[str]) -> str:
    """The file's text; rows whose id is in `taken` are left to the overlay."""
    today = datetime.now(UTC).date()
    parts = [
        f"# Made by `python -m gateway.metering.seed` from genai-prices {version('genai-prices')} (MIT licence).\n"
        "# Do not edit: corrections and additions go to overlay.toml. Dollars per million tokens; see docs/prices.md.\n"
    ]
    for provider in sorted((p for p in known if p.id in PROVIDERS), key=lambda p: list(PROVIDERS).index(p.id)):
        name = PROVIDERS[provider.id]
        entries = [entry for model in provider.models for entry in _entries(name, model)]
        lines = [line for entry in entries if _id(name, entry) not in taken for line in [_line(entry)]]
        names = {entry["model"].lower() for entry in entries}
        aliases = {a: m.id for m in provider.models if m.id.lower() in names for a in _aliases(m) if not _known(a, m.id, names)}
        parts.append(
            f'\n[{name}]\nsource = "genai-prices {version("genai-prices")}"\nchecked_on = {today}\nrows = [\n'
            + "".join(f"  {line},\n" for line in lines) + "]\n"
            + (f"[{name}.aliases]\n" + "".join(f'"{a}" = "{m}"\n' for a, m in sorted(aliases.items())) if aliases else "")
        )
    return "".join(parts)


def _entries(provider: str, model: Any) -> Iterator[Entry]:
    """All rows of one model: its dated standard prices, then its tiers, each with its long-context bands."""
    standard: Prices = {}
    name = _name(model)
    for constraint, prices in _dated(model):
        standard = _columns(provider, model.id, prices)
        yield from _bands({"model": name, **constraint}, standard, {})
    for variant in model.price_variants or ():
        if tier := _tier(variant.when):
            own = _columns(provider, model.id, variant.prices)
            yield from _bands({"model": name, "tier": tier, **_when(variant.constraint)}, standard | own, standard)


def _name(model: Any) -> str:
    """Its id; for fine-tuned models, whose names end in something of the customer's, a pattern."""
    if not model.id.startswith("ft:") and not model.id.endswith("-"):
        return str(model.id)
    return next((f"{text}*" for text in _starts(model.match)), model.id)


def _dated(model: Any) -> Iterator[tuple[Entry, Any]]:
    """Its standard prices with what limits them; hours of one price become one row."""
    if not isinstance(model.prices, list):
        yield {}, model.prices
        return
    hours = [c for c in model.prices if hasattr(c.constraint, "start_time")]
    yield from ((_when(c.constraint), c.prices) for c in model.prices if c not in hours)
    if hours:
        yield {"hours": ",".join(_when(c.constraint)["hours"] for c in hours)}, hours[0].prices


def _tier(when: dict[str, str]) -> str | None:
    """Our name of a variant: `fast` is Anthropic's speed, OpenAI's of that name is `priority` and stands there already."""
    if when == {"speed": "fast"}:
        return "fast"
    return _TIERS.get(next(iter(when.values()))) if when.keys() <= {"service_tier", "processing"} else None


def _when(constraint: Any) -> Entry:
    if constraint is None:
        return {}
    if hasattr(constraint, "start_date"):
        return {"valid_from": constraint.start_date}
    return {"hours": f"{constraint.start_time:%H:%M}-{constraint.end_time:%H:%M}"}


def _columns(provider: str, model: str, prices: Any) -> Prices:
    """genai-prices' columns under our names; units that we do not meter are left out, so that they stay unknown."""
    found = {ours: getattr(prices, theirs) for theirs, ours in _COLUMNS.items() if getattr(prices, theirs, None) is not None}
    if "write" in found:
        found[_SHORT_WRITE.get(provider, "write")] = short = found.pop("write")
        if provider == "openai":
            found["write_12h"] = _scaled(short, _WRITE_12H)
    if provider == "google" and model.startswith("gemini-"):
        found |= {name: found[of] for name, of in _AS_TEXT.items() if of in found and name not in found}
    if provider in _CACHED_AS_INPUT and "input" in found:
        found.setdefault("cached", found["input"])
    return found if "input" in found or "output" in found else {}


def _scaled(price: Any, factor: int) -> Any:
    if isinstance(price, Decimal):
        return price * factor
    return type(price)(base=price.base * factor, tiers=[type(t)(start=t.start, price=t.price * factor) for t in price.tiers])


def _bands(facts: Entry, prices: Prices, standard: Prices) -> Iterator[Entry]:
    """One row per band; a tier with flat prices where the standard has bands ends at the first of them."""
    starts = sorted({tier.start for price in prices.values() for tier in getattr(price, "tiers", ())})
    ends = [tier.start for name in ("input", "output") for tier in getattr(standard.get(name), "tiers", ())]
    flat = [tier.start for name in ("input", "output") if isinstance(prices.get(name), Decimal)
            for tier in getattr(standard.get(name), "tiers", ())]
    if not prices:
        return
    if flat or (ends and not starts):
        starts, facts = [], {**facts, "upto": min(flat or ends)}
    for bound in [0, *starts]:
        yield {**facts, **({"over": bound} if bound else {}), **{name: _at(price, bound) for name, price in prices.items()}}


def _at(price: Any, bound: int) -> Decimal:
    """A price in the band that begins above `bound`."""
    if isinstance(price, Decimal):
        return price
    reached = [tier for tier in price.tiers if tier.start <= bound]
    found: Decimal = max(reached, key=lambda tier: tier.start).price if reached else price.base
    return found


def _starts(match: Any) -> Iterator[str]:
    """Literal names in a match: equal ones, and the text of prefixes."""
    for clause in (*(getattr(match, "or_", None) or ()), *(getattr(match, "and_", None) or ())):
        yield from _starts(clause)
    for kind in ("equals", "starts_with", "ends_with", "contains"):
        if text := getattr(match, kind, None):
            yield text


def _aliases(model: Any) -> Iterator[str]:
    for name in _starts(model.match):
        alias = name.lower().rstrip("-@")
        if alias != model.id.lower() and not alias.startswith("ft:") and len(alias) > 3:
            yield alias


def _known(alias: str, model: str, names: set[str]) -> bool:
    """Whether the name needs no alias: a row's own, the model's with a date, or one that we leave unknown."""
    return alias in names or alias in _DISPUTED or model.lower() in _names(alias)


def _id(provider: str, entry: Entry) -> str:
    """The id which `rows.read` will give the row."""
    tier, hours, over = entry.get("tier"), entry.get("hours"), entry.get("over")
    name = f"{provider}/{entry['model']}@{entry.get('valid_from', 'launch')}"
    return name + (f"#{tier}" if tier else "") + ("#hours" if hours else "") + (f">{over}" if over else "")


def _line(entry: Entry) -> str:
    order = ("model", "tier", "valid_from", "hours", "over", "upto", *RATES, *FEES)
    return "{" + ", ".join(f"{key} = {_toml(entry[key])}" for key in order if key in entry) + "}"


def _toml(value: object) -> str:
    if isinstance(value, Decimal):
        text = f"{value:f}"
        return f'"{text.rstrip("0").rstrip(".") if "." in text else text}"'
    return f'"{value}"' if isinstance(value, str) else str(value)

if __name__ == "__main__":
    sys.exit(main())
