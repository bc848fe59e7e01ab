"""Two runs beside each other: figures with intervals, as JSON and as a table for people or for a pull request."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from router_policies.tally import FIGURES, Sums, Tally, interval, resampled


def compared(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Both runs, their difference, and intervals, for everything and by team and class."""
    groups = sorted({group for tally in tallies for group in tally.groups()})
    return {
        "calls": tallies[0].sums().calls,
        "all": _figures(tallies, None),
        "groups": [{"team": team, "class": name, **_figures(tallies, (team, name))} for team, name in groups],
    }


def _figures(tallies: Sequence[Tally], group: tuple[str, str] | None) -> dict[str, Any]:
    sums, drawn = [tally.sums(group) for tally in tallies], resampled(tallies, group)
    found: dict[str, Any] = {"old": _plain(sums[0]), "new": _plain(sums[1])}
    for name, figure in FIGURES.items():
        values = [[figure(one) for one in totals] for totals in drawn]
        low, high = interval(new - old for old, new in values)
        found[name] = {
            "old": figure(sums[0]), "old_95": interval(old for old, _ in values),
            "new": figure(sums[1]), "new_95": interval(new for _, new in values),
            "change": figure(sums[1]) - figure(sums[0]), "change_95": (low, high),
        }  # fmt: skip
    return found


def _plain(sums: Sums) -> dict[str, Any]:
    return {
        "calls": sums.calls, "refused": sums.refused, "missed": sums.missed,
        "tokens": {"uncached": sums.uncached, "cached": sums.cached, "output": sums.output},
        "lanes": dict(sorted(sums.lanes.items())),
    }  # fmt: skip


_NAMES = {
    "cost_usd": "cost, USD", "cost_and_wait_usd": "cost + waiting, USD", "miss_share": "deadlines missed",
    "first_token_p50_s": "first token p50, s", "first_token_p95_s": "first token p95, s",
}  # fmt: skip


def lines(result: dict[str, Any], *, markdown: bool) -> Iterator[str]:
    """`result`: what `compared` gives, with `seconds`."""
    head = ("", "old", "new", "change", "95 % of the change")
    rows = [("**all**" if markdown else "all", "", "", "", "")]
    rows += [_row(name, result["all"][name]) for name in FIGURES]
    for group in result["groups"]:
        label = f"{group['team']}, {group['class']} ({group['new']['calls']:,} calls)"
        rows.append((f"**{label}**" if markdown else label, "", "", "", ""))
        rows += [_row(name, group[name]) for name in ("cost_usd", "miss_share", "first_token_p50_s", "first_token_p95_s")]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(5)]
    if markdown:
        yield f"{result['calls']:,} calls replayed\n"
    else:
        yield f"{result['calls']:,} calls replayed in {result['seconds']} s"
    yield _line(head, widths, markdown)
    if markdown:
        yield "|" + "|".join("---" if i == 0 else "---:" for i in range(5)) + "|"
    yield from (_line(row, widths, markdown) for row in rows)
    tokens = {which: result["all"][which]["tokens"] for which in ("old", "new")}
    for which, by in tokens.items():
        yield f"{'' if not markdown else chr(10)}tokens, {which}: " + ", ".join(
            f"{count:,} {name}" for name, count in by.items()
        )
    for which in ("old", "new"):
        lanes = ", ".join(f"{lane} {count:,}" for lane, count in result["all"][which]["lanes"].items())
        yield f"{'' if not markdown else chr(10)}lanes, {which}: {lanes}"


def _row(name: str, figure: dict[str, Any]) -> tuple[str, str, str, str, str]:
    old, new, change, (low, high) = figure["old"], figure["new"], figure["change"], figure["change_95"]
    relative = f" ({change / old:+.1%})" if old and name != "miss_share" else ""
    return (
        f"  {_NAMES[name]}", _said(name, old), _said(name, new), f"{_said(name, change)}{relative}",
        f"{_said(name, low)} to {_said(name, high)}",
    )  # fmt: skip


def _said(name: str, value: float) -> str:
    if name == "miss_share":
        return f"{value:.2%}"
    return f"{value:,.4g}" if abs(value) < 1_000 else f"{value:,.0f}"


def _line(row: Sequence[str], widths: Sequence[int], markdown: bool) -> str:
    if markdown:
        return "| " + " | ".join(cell.strip() for cell in row) + " |"
    return "  ".join(
        cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
