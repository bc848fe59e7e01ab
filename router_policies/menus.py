"""Lanes to try policies on where nobody has any: a provider's tiers at usual price ratios, and a pool of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from router_policies.simulate import Reality
from router_policies.types import Rates


def rates(factor: float, models: Sequence[str] = ("m",)) -> dict[str, Rates]:
    """2.50, 0.25 and 15 dollars per million tokens (uncached, cached, output) at factor 1."""
    each = Rates(int(2_500_000 * factor), int(250_000 * factor), None, int(15_000_000 * factor))
    return dict.fromkeys(models, each)


def menu(models: Sequence[str] = ("m",), slots: int = 16) -> list[Reality]:
    """Priority at twice, flex at half the standard price, and an own pool at 0.6 of it with few slots."""
    provider = {
        "priority": (2.0, 0.35, 4e-5, 0.009, 0.3),
        "standard": (1.0, 0.6, 8e-5, 0.018, 0.4),
        "flex": (0.5, 3.0, 2e-4, 0.035, 0.8),
    }
    tiers = [
        Reality(
            key=f"provider/{name}", backend="provider", name=name, rates=rates(price, models), first_token_s=first,
            prefill_s_per_token=prefill, seconds_per_output_token=pace, spread=spread,
        )
        for name, (price, first, prefill, pace, spread) in provider.items()
    ]  # fmt: skip
    own = Reality(
        key="own/standard", backend="own", name="standard", rates=rates(0.6, models), first_token_s=0.2,
        prefill_s_per_token=1e-4, seconds_per_output_token=0.025, spread=0.25, slots=slots, cache_ttl_s=3_600.0,
        cache_tokens=3_000_000, cache_minimum=512,
    )  # fmt: skip
    return [*tiers, own]
