"""Money as whole nano-dollars, and the two places where it becomes text.

Inside the program money is an `int` named `..._nanos`: exact in SQL, in JSON and in Lua's doubles (up to 9 million dollars).
Rates are micro-dollars per million tokens, so tokens times rate is pico-dollars; `nanos_from_picos` is the only rounding
in the program and it goes upwards, so that a budget is never spent a little past its end.
"""
from __future__ import annotations

from decimal import Decimal

NANOS_PER_USD = 1_000_000_000


def nanos_from_picos(picos: int) -> int:
    """Pico-dollars to nano-dollars, rounded up."""
    return -(-picos // 1_000)


def usd(nanos: int | None) -> str | None:
    """Nano-dollars as a decimal string of dollars with nine places; None (price not known) stays None."""
    if nanos is None:
        return None
    sign, nanos = ("-", -nanos) if nanos < 0 else ("", nanos)
    return f"{sign}{nanos // NANOS_PER_USD}.{nanos % NANOS_PER_USD:09d}"


def nanos(text: str | int | Decimal) -> int:
    """Dollars as an operator writes them ("12.50") to nano-dollars. Raises ValueError where that is not exact."""
    amount = Decimal(text) * NANOS_PER_USD
    if amount != amount.to_integral_value():
        raise ValueError(f"{text} is finer than a nano-dollar")
    return int(amount)
