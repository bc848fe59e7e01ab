"""Prints what a demo found: the bill by team and lane, waiting times by lane, what caching and routing saved, the checks."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from gateway.demo.bill import Bill, Json
from gateway.demo.checks import Check
from gateway.demo.replay import AT_LIMIT, Turn

_MARK = {True: "ok", False: "FAILED", None: "skipped"}


def show(console: Console, bill: Bill, turns: Sequence[Turn], checks: Sequence[Check]) -> None:
    """All of it, in the order in which it is read."""
    for table in (_tokens(bill), _money(bill), _waiting(bill)):
        console.print(table, "")
    for line in (_sessions(turns), *errors(turns), _caching(bill.total), *_routing(bill.routing)):
        console.print(line, markup=False, soft_wrap=True)
    for check in checks:
        console.print(f"checks: {_MARK[check.ok]}: {check.text}", markup=False, soft_wrap=True)


def errors(turns: Sequence[Turn]) -> list[str]:
    """One line for each kind of error, the context limit left out: that is where a session may end."""
    kinds = Counter(turn.code for turn in turns if turn.code not in (None, AT_LIMIT))
    first = {code: next(turn for turn in turns if turn.code == code) for code in kinds}
    return [
        f"error {code}, {count} x, first in {turn.team} {turn.session} turn {turn.number}: {turn.message[:300]}"
        for code, count in kinds.most_common() if (turn := first[code])
    ]  # fmt: skip


def _table(title: str, *columns: str) -> Table:
    """Narrow enough for 80 columns; figures are never cut."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in ("team", "class", "lane") else "right", no_wrap=True)
    return table


def _tokens(bill: Bill) -> Table:
    table = _table("tokens", "team", "class", "lane", "calls", "uncached", "cached", "written", "output", "share")
    for row in bill.rows:
        table.add_row(*_who(row), *_counts(row))
    table.add_section()
    table.add_row("total", "", "", *_counts(bill.total))
    return table


def _counts(row: Json) -> list[str]:
    tokens = [f"{row[name]:,}" for name in ("calls", "uncached", "cache_read", "cache_write", "output")]
    return [*tokens, "-" if row["cache_share"] is None else f"{row['cache_share']:.1%}"]


def _money(bill: Bill) -> Table:
    table = _table("cost", "team", "class", "lane", "cost", "if nothing cached", "caching saved")
    for row in bill.rows:
        table.add_row(*_who(row), *_amounts(row))
    table.add_section()
    table.add_row("total", "", "", *_amounts(bill.total))
    return table


def _amounts(row: Json) -> list[str]:
    return [_usd(row[name]) for name in ("cost_usd", "cost_if_uncached_usd", "saved_usd")]


def _waiting(bill: Bill) -> Table:
    """An answer that is not streamed has its first token when it is whole."""
    table = _table("waiting", "lane", "answers", "first token p50", "p95", "whole answer p50", "p95")
    whole = {row["lane"]: row for row in bill.whole_answer}
    for first in bill.first_token:
        last = whole.get(first["lane"], {})
        times = [_ms(each.get(name)) for each in (first, last) for name in ("p50", "p95")]
        table.add_row(first["lane"] or "-", f"{first['count']:,}", *times)
    return table


def _sessions(turns: Sequence[Turn]) -> str:
    played = {(turn.team, turn.session) for turn in turns}
    limit = sum(turn.code == AT_LIMIT for turn in turns)
    answered = sum(turn.code is None for turn in turns)
    return f"sessions: {len(played)} replayed, {answered} turns answered, {limit} ended at the context limit ({AT_LIMIT})"


def _caching(total: Json) -> str:
    share = _share(total["saved_usd"], total["cost_if_uncached_usd"])
    return f"caching saved {_usd(total['saved_usd'])}{share}: the same tokens with every prompt token at the uncached rate"


def _routing(found: Json) -> list[str]:
    if "left_out" in found:
        return [f"what routing saved against all-fast is left out: {found['left_out']}"]
    saved, all_fast = _usd(found["saved_usd"]), _usd(found["all_fast_usd"])
    share = _share(found["saved_usd"], found["all_fast_usd"])
    lines = [f"routing saved {saved}{share} against {all_fast} for all-fast: {found['how']}"]
    return [*lines, f"these prices are {found['price_source']}"] if found["price_source"] else lines


def _share(part: str | None, whole: str | None) -> str:
    return f" ({Decimal(part) / Decimal(whole):.0%})" if part and whole and Decimal(whole) else ""


def _who(row: Json) -> list[str]:
    return [row["team"], row["class"] or "-", row["lane"] or "-"]


def _usd(text: str | None) -> str:
    return "unknown" if text is None else f"${Decimal(text):,.6f}"


def _ms(value: Any) -> str:
    return "-" if value is None else f"{value:,.0f} ms"
