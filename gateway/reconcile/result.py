"""What a comparison came to: sums of both sides, gaps by cause, and what is left unexplained."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core.money import usd
from gateway.reconcile import causes
from gateway.reconcile.causes import CAUSES, Finding
from gateway.reconcile.gaps import Join

MOST_FINDINGS = 20_000
LIMIT = 0.001
"""The share of the bill that may stay unexplained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    billed_nanos: int
    booked_nanos: int
    billed_tokens: int
    booked_tokens: int
    money: bool
    """The bill has dollars; else its tokens are valued by the price book."""
    findings: Sequence[Finding]

    @classmethod
    def of(cls, grid: Join, findings: Sequence[Finding]) -> Result:
        cells = [cell for _, _, _, cell in grid.cells()]
        strangers = [found for found in findings if found.note == "a key of no backend"]
        return cls(
            billed_nanos=sum(cell.billed_nanos for cell in cells) + sum(found.nanos or 0 for found in strangers),
            booked_nanos=sum(cell.booked_nanos for cell in cells),
            billed_tokens=sum(cell.billed for cell in cells) + sum(found.tokens for found in strangers),
            booked_tokens=sum(cell.booked for cell in cells),
            money=grid.has_money,
            findings=findings,
        )

    @property
    def residual(self) -> float:
        """The share of the bill that no cause explains: of its dollars, or of tokens whose dollars are not known if more."""
        rest = [found for found in self.findings if found.cause == "unknown"]
        nanos = sum(abs(found.nanos or 0) for found in rest)
        tokens = sum(abs(found.tokens) for found in rest if found.nanos is None)
        shares = ((nanos, self.billed_nanos or self.booked_nanos), (tokens, self.billed_tokens or self.booked_tokens))
        return max(part / whole if whole else float(part > 0) for part, whole in shares)

    @property
    def good(self) -> bool:
        return self.residual < LIMIT

    def json(self) -> dict[str, Any]:
        return {
            "billed": {"tokens": self.billed_tokens, "usd": usd(self.billed_nanos)},
            "booked": {"tokens": self.booked_tokens, "usd": usd(self.booked_nanos)},
            "gap_usd": usd(self.billed_nanos - self.booked_nanos),
            "valued_by": "bill" if self.money else "price book",
            "causes": [
                {
                    "cause": cause, "means": CAUSES[cause], "lines": lines, "tokens": tokens, "usd": usd(nanos),
                    "lines_without_usd": bare,
                }
                for cause, (lines, tokens, nanos, bare) in causes.sums(self.findings).items()
            ],
            "residual_share": self.residual,
            "good": self.good,
            "findings": [_finding(found) for found in self.findings[:MOST_FINDINGS]],
            "findings_left_out": max(0, len(self.findings) - MOST_FINDINGS),
        }


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "cause": found.cause, "day": found.where.day, "key": found.where.key, "model": found.where.model,
        "tier": found.place.tier, "region": found.place.region, "class": found.kind, "tokens": found.tokens,
        "usd": usd(found.nanos), "note": found.note,
    }  # fmt: skip
