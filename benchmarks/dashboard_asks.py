"""What `benchmarks.dashboard` asks of each page: every filter, every kind of viewer, every choice of a page's own."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from dashboard.app import PAGES
from dashboard.data import Viewer, instant, now_us
from dashboard.pages import caching, latency, spend
from gateway.ledger.reports import Reports

BARE = "30 days"
_MONTH = {"range": "30d", "tz": "Europe/Berlin"}
NARROWED = {
    "a team": {"team": "research"}, "two teams": {"team": ["search", "support"]}, "a model": {"model": "smollm2"},
    "a rare model": {"model": "brand-new-model"}, "a lane": {"lane": "standard"},
    "a lane of a team": {"team": "search", "lane": "fast"},
    "team, model, lane": {"team": "research", "model": "claude-sonnet-5", "lane": "standard"},
    "model and lane": {"model": "gpt-5.5", "lane": "flex"},
}  # fmt: skip
RANGES = ("1h", "24h", "today", "yesterday", "7d", "month", "90d", "all")
ZONES = {"India": "Asia/Kolkata", "Newfoundland": "America/St_Johns"}
OPERATOR = Viewer(None)
VIEWERS = {"a team's key": Viewer("search", "key"), "a project's key": Viewer("research", "key", "agents")}


@dataclass(frozen=True)
class Ask:
    """One page as one viewer opens it. `widgets`: what is chosen on the page itself, by the key of the widget."""

    title: str
    name: str
    address: Mapping[str, str | list[str]]
    viewer: Viewer = OPERATOR
    widgets: Mapping[str, str] = field(default_factory=dict)


def asks(report: Reports) -> list[Ask]:
    return [*_of_all_pages(), *_of_spend_and_caching(), *_of_latency(), *_of_calls(report), *_of_runs(report)]


def _of_all_pages() -> Iterator[Ask]:
    today = instant(now_us()).date()
    days = {"range": "custom", "from": f"{today - timedelta(days=9)}", "to": f"{today - timedelta(days=5)}"}
    for title in PAGES:
        yield Ask(title, BARE, _MONTH)
        yield from (Ask(title, f"range {name}", {**_MONTH, "range": name}) for name in RANGES)
        yield Ask(title, "five days", _MONTH | days)
        yield from (Ask(title, f"zone {name}", {**_MONTH, "tz": tz}) for name, tz in ZONES.items())
        yield from (Ask(title, name, {**_MONTH, **where}) for name, where in NARROWED.items())
        yield from (Ask(title, name, _MONTH, viewer) for name, viewer in VIEWERS.items())


def _of_spend_and_caching() -> Iterator[Ask]:
    """Each split, of all there is, of a model and for a project's key."""
    project = VIEWERS["a project's key"]
    for title, widget, splits in (("Spend", "split", spend.SPLITS), ("Caching", "cache_split", caching.SPLITS)):
        for split in splits:
            chosen = {widget: split}
            yield Ask(title, f"by {split}", _MONTH, widgets=chosen)
            yield Ask(title, f"by {split}, a model", {**_MONTH, "model": "smollm2"}, widgets=chosen)
            yield Ask(title, f"by {split}, a project's key", _MONTH, project, chosen)


def _of_latency() -> Iterator[Ask]:
    for of in latency.MEASURES:
        yield Ask("Latency", f"of {of}", _MONTH, widgets={"of": of})


def _of_calls(report: Reports) -> Iterator[Ask]:
    """What a link narrows it to, what is searched for, one call."""
    run = report.runs(most=1)[0].key[0] or ""
    call = str(report.call_list(limit=1)[0]["id"])
    links = {
        "team": "support", "project": "agents", "model": "brand-new-model", "lane": "flex", "backend": "anthropic",
        "class": "agent", "key": "key-search-1", "client": "curl", "status": "client_gone", "run": run,
        "tag:feature": "rerank", "miss": "expiry", "prices": '["openai/gpt-5.5@2026-04-01"]',
    }  # fmt: skip
    for by, value in links.items():
        yield Ask("Calls", f"by {by}", {**_MONTH, "by": by, "is": value})
    searched = {
        "a call": call[:-2], "a run": run, "a key": "key-search-1", "a status": "client_gone", "nothing": "no-such-thing",
    }  # fmt: skip
    for name, text in searched.items():
        yield Ask("Calls", f"search for {name}", _MONTH, widgets={"search": text})
    yield Ask("Calls", "one call", {**_MONTH, "call": call})


def _of_runs(report: Reports) -> Iterator[Ask]:
    for row in report.runs(most=1):
        yield Ask("Runs", "one run", {**_MONTH, "run": row.key[0] or ""})
