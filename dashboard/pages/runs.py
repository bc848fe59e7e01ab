"""Agents' runs: the dearest ones, and one of them as a tree, by subgoal with verdicts, and on a timeline."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import streamlit as st

from dashboard import charts, data, format, parts
from dashboard.data import Viewer
from dashboard.view import View

MOST = 200


def page(view: View, viewer: Viewer) -> None:
    if parts.empty(view, viewer):
        return
    found = data.dearest("run", view.part, MOST)
    if not found:
        st.info("No call in this range belongs to a run. A client names it by a header on its calls:", icon=parts.NOTHING)
        st.code("x-tollway-run: fix-issue-42\nx-tollway-subgoal: reproduce", language=None)
        return
    rows = [{"run": row.key[0], **parts.figures(row)} for row in found]
    order = ("run", "cost", "calls", "attempts", "cache share", "uncached", "cache read", "output", "failed")
    chosen_rows = parts.chosen(rows, "runs", parts.shown_as(rows), height=300, column_order=order)
    parts.download(rows, list(rows[0]), "runs")
    parts.pick("run", chosen_rows, [str(row["run"]) for row in rows])
    if chosen := str(st.query_params.get("run", "")):
        _run(chosen, view, viewer)
    else:
        st.caption("Choose a row to see the run's calls, its subgoals and the runs that it started.")


def _run(run_id: str, view: View, viewer: Viewer) -> None:
    run, calls = data.run(run_id, viewer), data.run_calls(run_id, viewer)
    parts.heading("One run")
    if run is None or not calls:
        st.info("There is no such run, or it is another team's.")
        return
    st.code(run_id, language=None)
    cost, count, share, took = st.columns(4)
    dollars = run["cost_usd"]
    left_out = f"; the cost of {run['unpriced']:,} attempts is unknown and not in it" if run["unpriced"] else ""
    parts.figure(cost, "Cost", "unknown" if dollars is None else f"${float(dollars):,.4f}", f"${dollars or 0}{left_out}")
    parts.figure(count, "Calls", format.count(run["calls"]), f"{run['attempts']:,} attempts")
    parts.figure(share, "Cache share", format.share(run["cache_share"]), f"{run['cache_read']:,} of {run['input_total']:,}")
    span = max(call["end_us"] for call in calls) - min(call["at_us"] for call in calls)
    parts.figure(took, "From first to last", format.ms(span / 1_000), f"{len(calls):,} attempts shown")
    st.download_button(
        "Trace, to replay under other policies", lambda: format.to_lines(data.run_trace(run_id, viewer)), "tollway-run.jsonl",
        "application/x-ndjson", key="trace", on_click="ignore", icon=":material/replay:", type="tertiary",
        help="For `tollway policy backtest OLD NEW --trace FILE`. Tokens, times and labels; prompts are not in the ledger.",
    )  # fmt: skip
    left, right = st.columns(2, gap="large")
    with left:
        parts.heading("By subgoal")
        _subgoals(run)
    with right:
        parts.heading("Runs that it started")
        _tree(run_id, calls)
    parts.heading("Timeline of its calls")
    parts.chart(charts.timeline(_bars(calls, view.tz)), "Timeline of the run's calls")


def _subgoals(run: dict[str, Any]) -> None:
    rows = [
        {"subgoal": goal["subgoal"], "verdict": _verdict(goal["verdict"]), "cost $": _dollars(goal["cost_usd"]),
         "calls": goal["calls"], "evidence": (goal["verdict"] or {}).get("evidence", "")}
        for goal in run["subgoals"]
    ]  # fmt: skip
    rows += [
        {"subgoal": name, "verdict": _verdict(said), "cost $": 0.0, "calls": 0, "evidence": said["evidence"]}
        for name, said in run["other_verdicts"].items()
    ]
    if not rows:
        st.caption("No call of it names a subgoal (header x-tollway-subgoal).")
        return
    money = {"cost $": parts.money("cost $", [row["cost $"] for row in rows])}
    parts.frame(rows, "subgoals", money)


def _dollars(text: str | None) -> float | None:
    return None if text is None else float(text)


def _verdict(said: dict[str, Any] | None) -> str:
    return "not judged" if said is None else "passed" if said["passed"] else "failed"


def _tree(run_id: str, calls: Sequence[dict[str, Any]]) -> None:
    """Runs under runs, each with what its own calls cost."""
    parents = {call["run"]: call["parent_run"] for call in calls}
    nanos: dict[str, int] = {}
    unknown = Counter(call["run"] for call in calls if call["cost_nanos"] is None)
    for call in calls:
        nanos[call["run"]] = nanos.get(call["run"], 0) + (call["cost_nanos"] or 0)

    def lines(name: str, depth: int) -> list[str]:
        own = f"{'   ' * depth}{'└─ ' if depth else ''}{name}   {format.usd(nanos.get(name, 0))}"
        own += f" and {unknown[name]:,} attempts of unknown cost" if unknown[name] else ""
        under = [run for run, parent in parents.items() if parent == name and run != name]
        return [own, *(line for run in sorted(under) for line in lines(run, depth + 1) if depth < 6)]

    st.code("\n".join(lines(run_id, 0)), language=None)


def _bars(calls: Sequence[dict[str, Any]], tz: str) -> list[charts.Point]:
    start = min(call["at_us"] for call in calls)
    return [
        {"row": n, "from": (call["at_us"] - start) / 1e6, "to": (call["end_us"] - start) / 1e6,
         "name": charts.name(call["lane"]), "subgoal": charts.name(call["subgoal"]), "status": call["status"],
         "at": f"{data.instant(call['at_us'], tz):%H:%M:%S}",
         "exact": f"{format.ms(call['total_ms'])}, ${call['cost_usd'] or 'not priced'}"}
        for n, call in enumerate(calls[:200])
    ]  # fmt: skip
