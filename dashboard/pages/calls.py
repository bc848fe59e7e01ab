"""The latest calls, and one of them in full: decision, attempts, tokens, prefix."""
from __future__ import annotations

from typing import Any

import streamlit as st

from dashboard import data, format, parts
from dashboard.data import BadQuery, Viewer
from dashboard.view import View, narrowed

HINT = "start of a call's id, or a whole run, key, model or status"
LIMITS = (50, 200, 1_000)
_SHOWN = ("at", "team", "model", "lane", "class", "status", "cost_usd", "input_total", "cache_read", "output", "first_token_ms",
          "total_ms", "attempts", "run", "client", "id")  # fmt: skip
_CONFIG: dict[str, Any] = {
    "at": st.column_config.TextColumn("time"),
    "input_total": st.column_config.NumberColumn("prompt", format="localized", help="Prompt tokens"),
    "cache_read": st.column_config.NumberColumn("from cache", format="localized", help="Prompt tokens read from a cache"),
    "output": st.column_config.NumberColumn(format="localized", help="Generated tokens, reasoning included"),
    "first_token_ms": st.column_config.NumberColumn("first token, ms", format="%.0f"),
    "total_ms": st.column_config.NumberColumn("total, ms", format="%.0f"),
    "cost_usd": st.column_config.TextColumn("cost, $", alignment="right"),
}


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    part = _part(view)
    left, right = st.columns([4, 1])
    search = left.text_input("Search", key="search", placeholder=HINT, max_chars=200)
    limit = right.selectbox("At most", LIMITS, key="limit")
    try:
        found, since_us = data.latest_calls(part, search.strip(), limit)
    except BadQuery as error:
        st.info(str(error), icon=parts.NOTHING)
        return
    if not found:
        st.info(f"Nothing matches. Search for the {HINT}.", icon=parts.NOTHING)
    else:
        parts.pick("call", _list(found, view.tz), [str(call["id"]) for call in found])
    if since_us is not None:
        back = f"{data.instant(since_us, view.tz):%d %B %Y %H:%M}"
        st.caption(f"Looked for back to {back}, in as many calls as a page may. Choose days before that to go on.")
    if chosen := str(st.query_params.get("call", "")):
        _call(chosen, viewer)
    elif found:
        st.caption("Choose a row to see how the call was decided and what it used.")


def _part(view: View) -> data.Slice:
    """The slice, narrowed by what another page's link said."""
    by, value = (str(st.query_params.get(name, "")) for name in ("by", "is"))
    if not by:
        return view.part
    left, right = st.columns([4, 1], vertical_alignment="center")
    left.text(f"Only calls with {by} {value}")
    if right.button("All calls", key="all-calls"):
        for name in ("by", "is"):
            st.query_params.pop(name, None)
        st.rerun()
    return narrowed(view.part, by, value)


def _list(found: list[dict[str, Any]], tz: str) -> list[int]:
    rows = [
        {**call, "at": f"{data.instant(call['at_us'], tz):%d %b %H:%M:%S}", "cost_usd": call["cost_usd"] or "not priced"}
        for call in found
    ]
    picked = parts.chosen(rows, "calls", _CONFIG, column_order=_SHOWN, height=380)
    parts.download(found, list(found[0]), "calls")
    return picked


def _call(call_id: str, viewer: Viewer) -> None:
    call = data.call(call_id, viewer)
    parts.heading("One call")
    if call is None:
        st.info("There is no such call, or it is another team's.")
        return
    st.code(call["id"], language=None)
    columns = st.columns(5)
    for column, (label, value) in zip(columns, (
        ("Status", call["status"]), ("Team", call["team"]), ("Lane", call["lane"]), ("Class", call["class"]),
        ("Cost", "not priced" if call["cost_usd"] is None else f"${call['cost_usd']}"),
    ), strict=True):  # fmt: skip
        column.caption(label)
        column.text(value)
    st.caption("Why")
    st.text(call["reason"])
    attempts, decision = st.tabs(["Attempts", "Decision"])
    with attempts:
        parts.frame([_attempt(attempt) for attempt in call["attempts"]], "attempts")
        st.caption("Cache: predicted and read")
        read = sum(attempt["tokens"]["cache_read"] or 0 for attempt in call["attempts"])
        st.text(f"{call['prefix']['predicted_read'] or 0:,} tokens predicted, {read:,} read")
        if call["prefix"]["miss"]:
            st.json(call["prefix"]["miss"])
    with decision:
        if call["decision"]:
            lanes = [{name: _text(value) for name, value in lane.items()} for lane in call["decision"]]
            parts.frame(lanes, "lanes")
        else:
            st.text("No figures of other lanes were kept for this call.")
    with st.expander("As JSON"):
        st.json(call)


def _attempt(attempt: dict[str, Any]) -> dict[str, Any]:
    tokens = attempt["tokens"]
    return {
        "backend": attempt["backend"], "model": attempt["upstream_model"], "lane": attempt["lane"],
        "tier": attempt["served_tier"], "status": attempt["status"], "http": attempt["http_status"],
        "first token": format.ms(attempt["first_token_ms"]), "total": format.ms(attempt["total_ms"]),
        "uncached": tokens["uncached"], "cache read": tokens["cache_read"], "cache write": sum(tokens["cache_write"].values()),
        "output": tokens["output"], "reasoning": tokens["reasoning"], "counted by": attempt["tokens_from"],
        "cost": attempt["cost_usd"] or "not priced", "prices": ", ".join(attempt["price_rows"]),
    }  # fmt: skip


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
