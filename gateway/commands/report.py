"""`tollway report` and `tollway why`: the sums that the dashboard shows, and one call in full."""
from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import click
from rich.table import Table

from gateway.commands.remote import Remote, console, options, print_json, print_table
from gateway.core.money import usd
from gateway.ledger.misses import ADVICE

_TIMES = ("p50", "p95", "p99", "max")
_MOST = 20
_COLUMNS = {
    "spend": (
        "calls", "attempts", "uncached", "cache_read", "cache_write", "output", "cache_share", "cost_usd", "saved_usd",
        "unpriced",
    ),
    "cache": ("calls", "input_total", "cache_read", "cache_share", "predicted_read", "saved_usd"),
    "routing": ("calls", "attempts", "failed", "retries", "output", "cost_usd", "unpriced"),
    "latency": ("count", *_TIMES),
}


@click.command()
@click.argument("name", type=click.Choice(list(_COLUMNS)))
@click.option("--by", help="dimensions, comma-separated: team, model, lane, day, run, tag:NAME and so on")
@click.option("--since", help="24h, 7d, 2026-11-30, 2026-11-30T12:00+01:00")
@click.option("--until", help="as --since; a day means its end")
@click.option("--tz", default="UTC", show_default=True, help="zone in which days begin")
@click.option("--team", help="one team only")
@click.option("--model", help="one model only")
@click.option("--lane", help="one lane only")
@click.option("--run", help="one agent run only")
@click.option("--of", type=click.Choice(["first_token", "total", "per_token"]), help="latency: of what")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def report(remote: Remote, name: str, as_json: bool, **words: str | None) -> None:
    """Sums over the ledger: spend, latency, cache or routing."""
    found = remote.ask("GET", "/tollway/usage", params={"report": name, **{k: v for k, v in words.items() if v}})
    if as_json:
        print_json(found)
        return
    rows = found["rows"]
    if not rows:
        click.echo("nothing in this range; send a call, or widen it with --since")
        return
    columns = [column for column in _COLUMNS[name] if column in rows[0] and (column != "unpriced" or found["total"][column])]
    table = Table(*found["by"], title=f"{name}, days in {found['tz']}")
    for column in columns:
        table.add_column(column.removesuffix("_usd"), justify="right")
    for row in rows:
        table.add_row(*[_text(key, row[key]) for key in found["by"]], *[_text(c, row[c]) for c in columns])
    if total := found.get("total"):
        table.add_section()
        table.add_row(*["total", *[""] * (len(found["by"]) - 1)], *[_text(c, total.get(c)) for c in columns])
    print_table(table)
    if total and total["unpriced"] and any(column.endswith("_usd") for column in columns):
        some = f"{total['unpriced']:,} of {total['attempts']:,} attempts"
        click.echo(f"The cost of {some} is unknown and in no sum of money here.")
    if name == "cache":
        _print_misses(found["misses"])
        _print_warmed(found["warmed"])
        _print_savings(found["savings"])


def _print_misses(misses: list[dict[str, Any]]) -> None:
    """What to mend first."""
    if not misses:
        return
    table = Table("a month", "lost", "calls", "kind", "place", "app", "what to do", "look at", title="what to mend first")
    for one in misses[:_MOST]:
        tokens = f"{one['lost_tokens']:,} tokens"
        app = " ".join(filter(None, (one["team"], one["client"], one["model"])))
        table.add_row(
            _text("usd_a_month_usd", one["usd_a_month"]), tokens, str(one["calls"]), one["kind"], one["path"], app,
            one["advice"], f"tollway why {one['example']}",
        )  # fmt: skip
    print_table(table)


def _print_warmed(warmed: list[dict[str, Any]]) -> None:
    """The gateway's own calls."""
    for one in warmed:
        cost, saved = _text("_usd", one["cost_usd"]), _text("_usd", one["saved_usd"])
        latest = "" if one["looked"] == one["calls"] else f" of the latest {one['looked']:,}"
        calls = f"{one['calls']:,} call{'s' * (one['calls'] != 1)}"
        click.echo(f"{one['kind']}: {calls}, {cost}; {one['of_use']:,}{latest} were of use, which saved {saved}")


def _print_savings(savings: list[dict[str, Any]]) -> None:
    """What was measured, or that it cannot be told yet."""
    for one in savings:
        sides = f"{one['sessions']} conversations, {one['held_out']} held out"
        if one["note"]:
            click.echo(f"saved by {one['lever']}: {one['note']} ({sides})")
        else:
            low, high = (_text("_usd", bound) for bound in one["interval_usd"])
            saved = _text("_usd", one["saved_usd"])
            click.echo(f"saved by {one['lever']}: {saved}, with 95 % confidence {low} to {high} ({sides})")


@click.command()
@click.argument("call_id")
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def why(remote: Remote, call_id: str, as_json: bool) -> None:
    """One call: why this lane, what it took, what it cost. CALL_ID stands in the answer's header x-tollway-call."""
    call = remote.ask("GET", f"/tollway/calls/{call_id}")
    if as_json:
        print_json(call)
        return
    cost = _text("cost_usd", call["cost_usd"])
    console.print(f"[b]{call['id']}[/b]  team {call['team']}, model {call['model']}, {call['status']}, {cost}", soft_wrap=True)
    console.print(f"class {call['class']}, lane {call['lane']}: {call['reason']}", soft_wrap=True, markup=False)
    _print_attempts(call["attempts"])
    _print_lanes(call["decision"])
    for receipt in call["receipts"]:
        console.print(_receipt(receipt), markup=False, soft_wrap=True)
    prefix = call["prefix"]
    if prefix["predicted_read"] is not None:
        read = sum(attempt["tokens"]["cache_read"] or 0 for attempt in call["attempts"])
        console.print(f"prefix: {prefix['predicted_read']} tokens expected from the cache, {read} read")
    if prefix["miss"]:
        console.print(_miss(prefix["miss"]), markup=False, soft_wrap=True)


def _receipt(receipt: dict[str, Any]) -> str:
    """What was changed, what was left and why, or which conversation it was and what it went without."""
    if "held" in receipt:
        held = ", ".join(lever for lever, out in receipt["held"].items() if out)
        return f"conversation {receipt['place']}" + (f", held out from: {held}" if held else "")
    if "left" in receipt:
        return f"left as it came by {receipt['pass']}: {receipt['place']} {receipt['left']}"
    if "dropped" in receipt:
        return f"not sent: {receipt['place']} ({receipt['dropped']})"
    if receipt["pass"].startswith("cache_"):
        return f"asked of the provider's cache at {receipt['place']}: {receipt['after']}"
    return f"normalized {receipt['place']} by {receipt['pass']}: {receipt['before']} -> {receipt['after']}"


def _miss(miss: dict[str, Any]) -> str:
    place = miss["path"] + (f", characters {miss['start']} to {miss['end']}" if miss["end"] else "")
    lost = "" if miss["lost_nanos"] is None else f", {_text('_usd', usd(miss['lost_nanos']))}"
    first = f"missed: {miss['kind'].replace('_', ' ')}" + (f" at {place}" if place else "")
    tokens = f"{miss['would_hit']:,} tokens would have been read, {miss['lost']:,} were lost{lost}"
    return f"{first}; {tokens}. {ADVICE[miss['kind']]}.{_of_provider(miss.get('provider'))}"


def _of_provider(said: dict[str, Any] | None) -> str:
    """What the provider itself says of the miss, where it was asked."""
    if said is None:
        return ""
    words = {True: ", as found here", False: ", which is not what was found here", None: ""}[said["agrees"]]
    tokens = "" if said["tokens"] is None else f", {said['tokens']:,} tokens"
    return f" The provider says: {said['reason'].replace('_', ' ')}{tokens}{words}."


def _print_attempts(attempts: list[dict[str, Any]]) -> None:
    """One column an attempt, so that it fits wherever it is read."""
    table = Table("attempt", *[str(number) for number in range(1, len(attempts) + 1)])
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "backend, lane": lambda one: f"{one['backend']}, {one['lane']}",
        "model": lambda one: one["upstream_model"],
        "status": lambda one: f"{one['status']} {one['http_status'] or ''}",
        "first token": lambda one: _text("ms", one["first_token_ms"]),
        "total": lambda one: _text("ms", one["total_ms"]),
        "uncached": lambda one: _text("", one["tokens"]["uncached"]),
        "cached": lambda one: _text("", one["tokens"]["cache_read"]),
        "written": lambda one: _text("", sum(one["tokens"]["cache_write"].values())),
        "output": lambda one: _text("", one["tokens"]["output"]),
        "counted by": lambda one: one["tokens_from"],
        "cost": lambda one: _text("cost_usd", one["cost_usd"]),
        "price rows": lambda one: " ".join(one["price_rows"]),
    }
    for name, figure in rows.items():
        table.add_row(name, *[figure(one) for one in attempts])
    print_table(table)


def _print_lanes(decision: list[dict[str, Any]]) -> None:
    table = Table("lane", title="every lane as it was weighed", title_justify="left")
    for name in ("cost", "wait s", "sum", "says"):
        table.add_column(name, justify="left" if name == "says" else "right")
    for place, lane in enumerate(decision):
        if "refused" in lane:
            table.add_row(lane["lane"], "", "", "", f"refused: {lane['refused']}")
        else:
            says = lane["note"] or ("chosen" if place == 0 else "")
            if "rent_usd" in lane:
                says = "; ".join(filter(None, (says, f"${lane['rent_usd']:.6f} of the sum is rent of a crowded slot")))
            table.add_row(
                lane["lane"], f"${lane['expected_cost_usd']:.9f}", f"{lane['expected_wait_s']:.3f}",
                f"${lane['sum_usd']:.9f}", says,
            )  # fmt: skip
    print_table(table)


def _text(column: str, value: Any) -> str:
    """A figure as people read it; None is a dash, never a nought."""
    if value is None:
        return "unknown" if column.endswith("_usd") else "-"
    if column.endswith("_usd"):
        return f"${Decimal(value):,.6f}"
    if column == "cache_share":
        return f"{float(value):.1%}"
    if column in ("ms", *_TIMES):
        return f"{value:,.0f} ms"
    return f"{value:,}" if isinstance(value, int) else str(value)
