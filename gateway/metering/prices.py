"""The price book: which dated row a call falls under, and what its tokens cost by that row.

`price` never guesses. A model, tier, region, band or token class that no row covers makes the cost unknown (None, with
`missing` saying what), never 0 and never silently the standard price. Several files form layers; a later one wins where
it has a row that is in force at that time. What `TokenUsage.other` may hold: `charge.py`.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from gateway.core.usage import TokenUsage
from gateway.metering.charge import ITERATION, WRITES, Priced, priced, split_iterations, total
from gateway.metering.rows import PriceFile, Region, Row, Section, read

BUILT_IN = tuple(Path(__file__).parent / name for name in ("prices.toml", "overlay.toml"))
"""Made by `python -m gateway.metering.seed`, and kept by hand."""
PROVIDERS = {
    "xai": "x-ai", "moonshotai": "moonshot", "kimi": "moonshot", "dashscope": "qwen", "aws": "bedrock", "gemini": "google",
    "foundry": "anthropic",
}
"""Other names of providers."""
DEFAULT_TIERS = frozenset({"", "default", "standard", "standard_only", "on_demand"})
NOWHERE = frozenset({None, "", "global", "not_available"})
"""Regions that mean no place in particular."""
_TIERS = {"on_demand_priority": "priority", "on_demand_flex": "flex", "standard+fast": "fast"}
_DATED = re.compile(r"[-@]20\d\d-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01])$|(?<=-preview)-\d\d-(?:20)?\d\d$")
"""`-2026-04-01`, `-20260901`, `@20260901`, and of previews `-05-20` and `-09-2025`."""
_PROFILE = re.compile(r"^(us|eu|apac|jp|au|ca|us-gov)\.(?=\w+\.)")
"""Bedrock's inference profiles name a region before the model: `us.anthropic.claude-...`."""
_REMEMBERED = 4096
_Top = tuple[int, int, int]
"""A band's bound, its highest input rate, its highest output rate."""


class Offer(NamedTuple):
    """What is bought: a provider's model, in a tier (None: the usual one), at a region's price, by the batch or not."""

    provider: str
    model: str
    tier: str | None = None
    region: str | None = None
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Rates:
    """Micro-dollars per million tokens, for forecasts: a class without a price counts as uncached input."""

    uncached: int
    cached: int
    cache_write: int
    output: int


@dataclass(frozen=True, slots=True)
class _Now:
    """The rows of one version that are in force in one minute, base band first, with the surcharge of the region asked for."""

    minute: int
    bands: tuple[Row, ...] = ()
    region: Region | None = None
    tops: dict[bool, tuple[_Top, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Line:
    """All rows for one provider, model, tier and region, top layer first; `now` is replaced as a whole, so threads may ask."""

    missing: str | None = None
    layers: tuple[tuple[tuple[Row, ...], Region | None], ...] = ()
    now: _Now = _Now(-1)
    most: int | None = -1
    """Most output tokens; -1: not looked up yet."""


@dataclass(slots=True)
class PriceBook:
    """Price files in order, the later one wins. Whoever prices has the same one, so that all follow when files change."""

    files: tuple[PriceFile, ...] = field(repr=False)
    _lines: dict[Offer, _Line] = field(default_factory=dict, compare=False, repr=False)
    _dearest: dict[tuple[Any, ...], tuple[int, tuple[_Top, ...]]] = field(default_factory=dict, compare=False, repr=False)
    """What `dearest` looks at, and the minute for which that holds."""

    def price(self, offer: Offer, usage: TokenUsage, at_us: int) -> Priced:
        """What `usage` cost at `at_us` (microseconds, UTC) in the tier that was *served* (None: the answer named none)."""
        line = self._line(offer)
        if usage.uncached is None and usage.output is None:
            return Priced(None, missing=("usage",))
        if usage.other and any(name.startswith(ITERATION) for name in usage.other):
            return total(
                self.price(offer._replace(model=inner), part, at_us)
                for inner, part in split_iterations(offer.model, usage)
            )
        now = _now(line, at_us)
        row = _band(now.bands, usage.input_total)
        if isinstance(row, str):
            return Priced(None, missing=(line.missing or row,))
        return priced(row, now.region, usage)

    def rates(self, offer: Offer, at_us: int) -> Rates | None:
        """Base-band rates for a forecast; None where no row is in force."""
        now = _now(self._line(offer._replace(tier=None) if offer.tier == "auto" else offer), at_us)
        if not now.bands:
            return None
        rate, place = now.bands[0].rates, now.region
        uncached = rate.get("input", 0)
        write = next((rate[name] for name in WRITES["unknown"] if name in rate), uncached)
        return Rates(*(_times(r, place) for r in (uncached, rate.get("cached", uncached), write, rate.get("output", 0))))

    def bands(self, offer: Offer, at_us: int) -> tuple[Row, ...]:
        """The rows in force, base band first; empty: none."""
        return _now(self._line(offer), at_us).bands

    def renew(self, files: tuple[PriceFile, ...]) -> None:
        """From now on by these files. Calls under way are priced by them too: a price that changes is a new dated row."""
        self.files = files
        self._lines.clear()
        self._dearest.clear()

    def dearest(self, offer: Offer, at_us: int, *, input_bound: int, media: bool = False) -> tuple[int, int] | None:
        """The highest input and output rate (micro-dollars per million tokens) that a call may meet; None: not known.

        `media`: it carries images or sound. What the answer will be is not known, so all rates of output count. A tier that
        is asked for may be refused and served as the default one, so both count.
        """
        key, minute = (offer, media), at_us // 60_000_000
        known = self._dearest.get(key)
        if known is None or known[0] != minute:
            if len(self._dearest) >= _REMEMBERED:
                self._dearest.clear()
            known = self._dearest[key] = minute, self._met(offer, at_us, media)
        tops = known[1]
        if len(tops) == 1:
            return tops[0][1:]
        met = [(into, out) for over, into, out in tops if over < input_bound or not over]
        return (max([into for into, _ in met], default=0), max([out for _, out in met], default=0)) if tops else None

    def _met(self, offer: Offer, at_us: int, media: bool) -> tuple[_Top, ...]:
        """`_tops` of the tier that is asked for, and of the default one; empty where the first is not priced."""
        usual = self._tops(offer._replace(tier=None), at_us, media)
        if offer.tier is None or offer.tier == "auto":
            return usual
        asked = self._tops(offer, at_us, media)
        return (*asked, *usual) if asked else ()

    def _tops(self, offer: Offer, at_us: int, media: bool) -> tuple[_Top, ...]:
        """One for each band in force."""
        now = _now(self._line(offer), at_us)
        tops = now.tops.get(media)
        if tops is None:
            tops = now.tops[media] = tuple(_top(row, now.region, media) for row in now.bands)
        return tops

    def max_output(self, provider: str, model: str) -> int | None:
        """Most output tokens that the model can give; None where we have no figure."""
        line = self._line(Offer(provider, model))
        if line.most == -1:
            line.most = self._limit(provider, model.lower())
        return line.most

    def _limit(self, provider: str, model: str) -> int | None:
        for section in self._sections(provider):
            names = [section.aliases.get(name, name) for name in _names(model)]
            for pattern, most in section.limits.items():
                if any(fnmatchcase(name, pattern) for name in names):
                    return most
        return None

    def rows(self, provider: str | None = None, model: str | None = None) -> Iterator[Row]:
        """Rows as they stand in the files, top layer first; `model` also by alias or dated name."""
        if provider is None:
            yield from (row for file in reversed(self.files) for section in file.values() for row in section.rows)
            return
        for section in self._sections(provider):
            yield from section.rows if model is None else _named(section, model.lower())

    def _sections(self, provider: str) -> Iterator[Section]:
        """What the files say of a provider, top layer first, then of those it prices like."""
        provider = PROVIDERS.get(provider, provider)
        chain = [provider, *(other for file in self.files if (own := file.get(provider)) for other in own.like)]
        for file in reversed(self.files):
            yield from (file[name] for name in chain if name in file)

    def _line(self, offer: Offer) -> _Line:
        line = self._lines.get(offer)
        if line is None:
            if len(self._lines) >= _REMEMBERED:     # names come from clients: forget all rather than grow
                self._lines.clear()
            line = self._lines[offer] = self._find(*offer._replace(model=offer.model.lower()))
        return line

    def _find(self, provider: str, model: str, tier: str | None, region: str | None, batch: bool) -> _Line:
        wanted = _tier(PROVIDERS.get(provider, provider), tier, batch)
        if PROVIDERS.get(provider, provider) == "bedrock" and (profile := _PROFILE.match(model)):
            region, model = region or profile[1], model[profile.end():]
        place = None if region in NOWHERE else region
        layers: list[tuple[tuple[Row, ...], Region | None]] = []
        tiers: set[str] = set()
        rules = [rule for section in self._sections(provider) for rule in section.regions]
        for section in self._sections(provider):
            named = _named(section, model)
            tiers |= {row.tier for row in named}
            rows = [row for row in named if row.tier == wanted]
            own = tuple(row for row in rows if row.region == place)
            if place is None or own:
                layers.append((own, None))
            elif rule := next((r for r in rules for row in rows[:1] if r.fits(row.model, place)), None):
                layers.append((tuple(row for row in rows if row.region is None), rule))
        layers = [layer for layer in layers if layer[0]]
        if layers:
            return _Line(layers=tuple(layers))
        if not tiers:
            return _Line(missing=f"model {provider}/{model}")
        return _Line(missing=f"tier {wanted}" if wanted not in tiers else f"region {region}")


def load(paths: Iterable[Path] = (), *, built_in: bool = True) -> PriceBook:
    """Our own files and, over them, the operator's. Raises PriceFileError, which names file and place."""
    ours = [read(path) for path in BUILT_IN] if built_in else []
    return PriceBook((*ours, *(read(path, path.stem) for path in paths)))


def _now(line: _Line, at_us: int) -> _Now:
    """What is in force at that time: the top layer that has a base row then."""
    minute = at_us // 60_000_000
    now = line.now
    if now.minute != minute:
        now = _Now(minute)
        for rows, region in line.layers:
            active = [row for row in rows if row.active(at_us)]
            base = max((row for row in active if not row.over), key=lambda row: row.version, default=None)
            if base:
                same = (row for row in active if row.version == base.version)
                now = _Now(minute, tuple(sorted(same, key=lambda row: row.over)), region)
                break
        line.now = now
    return now


def _tier(provider: str, tier: str | None, batch: bool) -> str:
    """One name for each tier, whatever the provider calls it; batch is a tier, and only stacks with the default one."""
    name = (tier or "").lower()
    name = "default" if name in DEFAULT_TIERS else _TIERS.get(name, name)
    if provider in ("openai", "azure") and name == "fast":
        name = "priority"                           # renamed 2026-07-30
    if batch:
        return "batch" if name in ("default", "batch") else f"batch+{name}"
    return name


def tier_name(provider: str, tier: str | None, batch: bool = False) -> str:
    """A tier as the rows name it, whoever named it how: `default`, `priority`, `flex`, `batch` and so on."""
    return _tier(PROVIDERS.get(provider, provider), tier, batch)


def plain_model(model: str) -> str:
    """A model's name without the path before it and the date at its end."""
    return _names(model.lower())[-1]


def _names(model: str) -> tuple[str, ...]:
    """Names to try: the model's own, without a date at its end, and without the path before it (`models/gemini-2.5-pro`)."""
    tail = model.rpartition("/")[2]
    return tuple(dict.fromkeys((model, _DATED.sub("", model), tail, _DATED.sub("", tail))))


def _named(section: Section, model: str) -> tuple[Row, ...]:
    """Rows of a section for a model: by exact name, then without its date, then by the longest pattern."""
    for name in _names(model):
        found = tuple(row for row in section.rows if row.model == name)
        if not found and (alias := section.aliases.get(name)):
            found = tuple(row for row in section.rows if row.model == alias)
        if found:
            return found
    patterns = [row.model for row in section.rows if "*" in row.model and fnmatchcase(model, row.model)]
    best = max(patterns, key=len, default=None)
    return tuple(row for row in section.rows if row.model == best)


def _band(bands: Sequence[Row], tokens: int) -> Row | str:
    """The row for a prompt of that many input tokens, or what is missing."""
    if not bands:
        return "no row is in force at that time"
    row = bands[0]
    for band in bands[1:]:
        if tokens > band.over:
            row = band
    return row if row.upto is None or tokens <= row.upto else f"band of more than {row.upto} input tokens"


def _times(rate: int, region: Region | None) -> int:
    return rate if region is None else -(-rate * region.num // region.den)


def _top(row: Row, region: Region | None, media: bool) -> _Top:
    into = max((rate for name, rate in row.rates.items() if _may_be_input(name, media)), default=0)
    out = max((rate for name, rate in row.rates.items() if name == "output" or name.endswith("_out")), default=0)
    return row.over, _times(into, region), _times(out, region)


def _may_be_input(name: str, media: bool) -> bool:
    return name in ("input", "cached") or name.startswith("write") or (media and name.endswith("_in"))
