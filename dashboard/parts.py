"""Pieces that several pages show: tables, downloads, and what stands there when there is nothing to show."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import charts, data, filters, format
from dashboard.advice import Advice
from dashboard.data import Row
from dashboard.view import View

Good = Literal["normal", "inverse", "off", "none"]
NOTHING = ":material/search_off:"
_COUNTS = (
    "calls", "attempts", "uncached", "cache read", "cache write", "output", "reasoning", "retries", "failed", "not priced",
)  # fmt: skip
SAYS: Mapping[str, str] = {
    "cost": "What was paid; calls without a price are left out",
    "cost if uncached": "What it would have cost with every prompt token computed afresh",
    "saved": "Cost if uncached, less what was paid",
    "cache share": "Share of prompt tokens that came from a cache",
    "attempts": "Tries of calls: retries, failovers and hedges count",
    "uncached": "Prompt tokens computed afresh", "cache read": "Prompt tokens read from a cache",
    "cache write": "Prompt tokens written to a cache", "output": "Generated tokens, reasoning included",
}  # fmt: skip
"""What a column means, for the pointer on its head."""
SHARE = st.column_config.ProgressColumn(format="percent", min_value=0, max_value=1)
COLUMNS: Mapping[str, Any] = {
    "cache share": st.column_config.ProgressColumn(help=SAYS["cache share"], format="percent", min_value=0, max_value=1),
    **{name: st.column_config.NumberColumn(format="localized", help=SAYS.get(name)) for name in _COUNTS},
}
DOLLARS = ("cost", "cost if uncached", "saved")


def money(label: str, dollars: Sequence[float | None]) -> Any:
    """A column of dollars: to the cent from ten dollars on, else to the millionth; the download has the nano-dollars."""
    large = max((abs(amount) for amount in dollars if amount is not None), default=0) >= 10
    return st.column_config.NumberColumn(label, format="dollar" if large else "$%.6f", help=SAYS.get(label))


def shown_as(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How the figures of `figures` are shown."""
    return {**COLUMNS, **{name: money(name, [row[name] for row in rows]) for name in DOLLARS}}


def frame(rows: Sequence[Mapping[str, Any]], key: str, how: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """A table; `how`: column -> its configuration. What is not known is a dash."""
    return st.dataframe(rows, hide_index=True, placeholder=format.NONE, column_config=how, key=f"{key}-table", **more)


def chosen(rows: Sequence[Mapping[str, Any]], key: str, how: Mapping[str, Any], **more: Any) -> list[int]:
    """A table of which one row can be chosen; its place, if one is."""
    return list(frame(rows, key, how, on_select="rerun", selection_mode="single-row", **more)["selection"]["rows"])


def cards(found: Sequence[Advice], *, linked: bool = False) -> None:
    """Advice side by side, three at most; `linked`: with a way to the page that tells more of that team."""
    for column, item in zip(st.columns(3), found, strict=False):
        with column.container(border=True, height="stretch"):
            st.markdown(f"**{format.plain(item.title)}**")
            if item.monthly_nanos is not None:
                st.caption(f"about {format.plain(format.usd(item.monthly_nanos))} a month")
            st.text(item.text)
            if linked:
                go(item.page, f"More on {item.page}", **{filters.ONLY: item.team})


def empty(view: View, viewer: data.Viewer) -> bool:
    """Whether the view holds no attempt; says what to do about it."""
    if data.spend((), view.part).total.attempts:
        return False
    extent = data.extent(viewer)
    if not extent.entries or extent.last_us is None:
        st.info("No calls yet. Send one and it shows up here within seconds:", icon=":material/rocket_launch:")
        st.code(_curl(), language="bash")
        st.caption("The key is in DATA/keys/demo. Any OpenAI or Anthropic client works the same once its base URL is changed.")
        return True
    last = data.instant(extent.last_us, view.tz)
    st.info(f"Nothing in this range for these filters. The last call was on {last:%d %B %Y at %H:%M}.", icon=NOTHING)
    if st.button("Show all time, all teams", key="widen"):
        filters.widen()
        st.rerun()      # the sidebar too, which is not part of what is refreshed
    return True


def _curl() -> str:
    url = os.environ.get("TOLLWAY_URL", "http://127.0.0.1:4000")
    return (
        f"curl {url}/v1/chat/completions \\\n"
        '  -H "authorization: Bearer $(cat .tollway/keys/demo)" -H "content-type: application/json" \\\n'
        """  -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}]}'"""
    )


def heading(text: str) -> None:
    """Our own words only: this is Markdown."""
    st.markdown(f"##### {text}")


def chart(drawn: alt.Chart | alt.LayerChart, what: str) -> None:
    """`what` is what a screen reader says. Not held against Vega-Lite's schema here: tests do that, it takes 25 ms a chart."""
    st.vega_lite_chart(spec=drawn.to_dict(validate=False), alt=what)


def figure(column: DeltaGenerator, label: str, value: str, more: str, delta: str | None = None, good: Good = "off") -> None:
    """One number in a box; `more` is its tooltip. `good`: whether a rise is green (`normal`), a fall is (`inverse`), neither
    (`off`), or `delta` is no change at all but a second figure (`none`)."""
    column.metric(
        format.plain(label), value, delta, delta_color="off" if good == "none" else good, help=format.plain(more), border=True,
        delta_arrow="off" if good == "none" else "auto", height="stretch",
    )  # fmt: skip


def unheard() -> None:
    """What only a gateway can tell, and none has yet."""
    st.info("No gateway has said how it is yet. Start one; it says so within a quarter of a minute.", icon=":material/sensors:")
    st.code("tollway up", language="bash")


def pick(name: str, rows: Sequence[int], ids: Sequence[str]) -> None:
    """What was chosen in a table stands in the address; a refresh that moves the rows does not change it."""
    if list(rows) != st.session_state.get(f"picked {name}", []):
        st.session_state[f"picked {name}"] = list(rows)
        if rows and rows[0] < len(ids):
            st.query_params[name] = ids[rows[0]]


def unpriced(row: Row) -> None:
    """A sum that leaves something out says so."""
    if row.unpriced:
        st.warning(
            f"{row.unpriced:,} of {row.attempts:,} attempts have no known price and are in no sum of money here. "
            "Add the model to a price file, then run `tollway rerate`.",
            icon=":material/money_off:",
        )


def figures(row: Row) -> dict[str, Any]:
    """A row of sums as a table shows it."""
    return {
        "calls": row.calls, "attempts": row.attempts, "cost": _dollars(row.cost_nanos), "saved": _dollars(row.saved_nanos),
        "cost if uncached": _dollars(row.uncached_cost_nanos), "cache share": row.cache_share, "uncached": row.uncached,
        "cache read": row.cache_read, "cache write": row.cache_write, "output": row.output, "reasoning": row.reasoning,
        "retries": row.retries, "failed": row.failed, "not priced": row.unpriced,
    }  # fmt: skip


def _dollars(nanos: int | None) -> float | None:
    return None if nanos is None else nanos / 1e9


def table(by: Sequence[str], rows: Sequence[Row], key: str, columns: Sequence[str] = ()) -> None:
    """Rows with all their figures, to sort, to download and, where they are by one word, to go on to their calls from; the
    download has money to the nano-dollar."""
    shown = [{**dict(zip(by, map(charts.name, row.key), strict=True)), **figures(row)} for row in rows]
    how, order = shown_as(shown), [*by, *columns] if columns else None
    if len(by) == 1:
        picked = chosen(shown, key, how, column_order=order)
        if picked and picked[0] < len(rows):
            to_calls(by[0], charts.name(rows[picked[0]].key[0]))
        else:
            st.caption("Choose a row to go on to its calls.")
    else:
        frame(shown, key, how, column_order=order)
    exact = [row.json(tuple(by)) for row in rows]
    download(exact, list(exact[0]) if exact else list(by), key)


def to_calls(by: str, value: str) -> None:
    """A link to the calls behind a figure, with the filter in force."""
    go("Calls", f"Calls with {by} {value}", by=by, **{"is": value})


def go(title: str, label: str, **more: str | list[str]) -> None:
    """A link to another page, filter and all."""
    if page := st.session_state.get("pages", {}).get(title):
        st.page_link(page, label=format.plain(label), icon=":material/arrow_forward:", query_params=filters.address() | more)


def download(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], name: str) -> None:
    """As CSV, cells that a spreadsheet would run escaped, and as Parquet, types kept."""
    side = st.container(horizontal=True)
    side.download_button(
        "CSV", format.to_csv(rows, columns), f"tollway-{name}.csv", "text/csv", key=f"{name}-csv", on_click="ignore",
        icon=":material/download:", type="tertiary", help="Download as CSV",
    )  # fmt: skip
    side.download_button(
        "Parquet", lambda: format.to_parquet(rows, columns), f"tollway-{name}.parquet", "application/vnd.apache.parquet",
        key=f"{name}-parquet", on_click="ignore", icon=":material/download:", type="tertiary", help="Download as Parquet",
    )  # fmt: skip
