"""One line of a provider's bill, and the words that bills use for kinds of tokens."""
from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gateway.core.money import NANOS_PER_USD

INPUT = ("uncached", "cache_read", "write_5m", "write_30m", "write_1h", "write_12h", "write_unknown")
CLASSES = (*INPUT, "output", "other")
"""Classes of a bill: those of the ledger, and `other` for what is charged beside tokens."""
WORDS = {
    "input": "uncached", "input_tokens": "uncached", "uncached_input_tokens": "uncached", "prompt": "uncached",
    "cached": "cache_read", "cached_input": "cache_read", "cache_read_input_tokens": "cache_read", "read": "cache_read",
    "input_cached_tokens": "cache_read", "cached_input_tokens": "cache_read",
    "cache_creation.ephemeral_5m_input_tokens": "write_5m", "cache_creation.ephemeral_1h_input_tokens": "write_1h",
    "cache_write": "write_unknown", "write": "write_unknown", "cache_write_tokens": "write_unknown",
    "input_cache_write_tokens": "write_30m", "cache_write_30m": "write_30m", "cache_write_12h": "write_12h",
    "input_cache_write_30m_tokens": "write_30m", "input_cache_write_12h_tokens": "write_12h",
    "output_tokens": "output", "completion": "output",
}  # fmt: skip
"""What bills say for a class, lower case, beside the class's own name."""
_CENT = NANOS_PER_USD // 100
_MOST_DIGITS = 12


class BadFile(ValueError):
    """An export that cannot be read; the text names the place."""


class Line(BaseModel):
    """Tokens of one class, money, or both. `tier` and `region` are None where the bill does not split by them; a region of ""
    is no place in particular."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    day: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    key: str | None = None
    """The provider's name for the key, or for the project or workspace where it splits by that."""
    model: str
    tier: str | None = None
    region: str | None = None
    kind: str
    tokens: int | None = None
    nanos: int | None = None


def kind_of(word: str) -> str:
    """The class that a bill's word stands for; `other` for a word that is none."""
    word = word.strip().lower().replace(" ", "_")
    return word if word in CLASSES else WORDS.get(word, "other")


def nanos_of(amount: Any, per_usd: int = 1) -> int:
    """A bill's amount, whole nano-dollars, rounded to the nearest; `per_usd`: 100 where it is in cents. Raises `ValueError` for
    what no line of a bill can be."""
    exact = Decimal(str(amount))
    if not exact.is_finite() or exact.adjusted() > _MOST_DIGITS:
        raise ValueError(f"the amount {str(amount)[:40]!r} is none")
    return int((exact * NANOS_PER_USD / per_usd).to_integral_value())


def unit_of(amounts: Iterable[Any], per_usd: int = 1) -> int:
    """The smallest step of a bill's amounts, in nano-dollars: what it may have rounded to; at most a cent."""
    finest = 2
    for amount in amounts:
        exponent = Decimal(str(amount)).normalize().as_tuple().exponent
        if isinstance(exponent, int):
            finest = max(finest, -exponent + (2 if per_usd == 100 else 0))
    return max(1, _CENT // int(10 ** min(finest - 2, 7)))
