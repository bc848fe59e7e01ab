"""What cache misses cost, by what caused them: the list of what to mend first."""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Select, func, select
from sqlalchemy import cast as sql_cast

from gateway.core.money import usd
from gateway.ledger.slices import Slice
from gateway.ledger.tables import LEDGER

C = LEDGER.c
_MONTH_US = 30 * 86_400 * 1_000_000
_INDEX = re.compile(r"^(/messages|/input)/\d+")
"""Which message it was differs from call to call; what is said about it does not."""

ADVICE: Mapping[str, str] = {
    "timestamp": "Take the time out of the fixed part: send it in the last user message, or only when it is asked for",
    "date": "Send the date in the last user message, or fix it when the conversation begins",
    "id": "Leave the id out of the prompt; the header x-tollway-tags or x-tollway-run carries it without a token",
    "counter": "Leave the count out of the fixed part, or say it in the last message",
    "nonce": "Leave the nonce out: it makes every prompt a new one, to every cache",
    "git": "Read the repository's state once when the conversation begins, and tell changes in the last message",
    "billing": "Level `equivalent` drops this line for all but its own provider",
    "tool_order": "Send the tools in one order (sort them by name); level `equivalent` does it here",
    "tool_added": "Offer the same tools in every turn; forbid some by tool_choice rather than by leaving them out",
    "tool_removed": "Offer the same tools in every turn; forbid some by tool_choice rather than by leaving them out",
    "json_form": "Write JSON with the keys in one order; level `equivalent` holds the first form of the tools",
    "whitespace": "Build the prompt from one template: only blanks differ",
    "unicode": "Compose text the same way everywhere (NFC) before it is sent",
    "edit": "Keep what differs out of the fixed part: put it behind the part that all calls share",
    "appended": "Put what is added later into a message instead of the system prompt",
    "system_added": "Begin the conversation with the instruction that is added later, or send it as a message",
    "system_removed": "Keep the system prompt in every turn",
    "history_edit": "Send earlier messages back as they were; shorten tool results when they are first sent, not later",
    "cut": "Drop old messages rarely and many at once: every cut writes what follows anew",
    "inserted": "Add messages at the end only",
    "order": "Keep the messages in the order in which they were sent",
    "settings": "Keep effort, verbosity and output format for a whole conversation: they are part of the prefix",
    "model": "Stay with one model for a conversation: caches are not shared between models",
    "expiry": "The next turn came after the entry had run out: a longer lifetime (1h, 24h) pays if it happens often",
    "other_lane": "The conversation changed lanes: waiting may be valued too high for its class, or a lane is unsteady",
    "below_minimum": "The shared part is shorter than what the provider caches: nothing is lost by waiting, nothing to mend",
    "dropped": "The provider had let it go, or had not marked it: on Anthropic set cache_control, on OpenAI a prompt_cache_key",
}
"""Kind of a miss -> the change to make in the app."""
KINDS = tuple(ADVICE)
WORDS: Mapping[str, str] = {
    "timestamp": "a time", "date": "a date", "id": "an id", "counter": "a count", "nonce": "a random value",
    "edit": "edited text", "git": "the repository's state", "billing": "a billing line", "tool_order": "tools in another order",
    "tool_added": "a tool that was added", "tool_removed": "a tool that was left out", "whitespace": "other blanks",
    "json_form": "JSON with its keys in another order", "unicode": "text composed in another way",
    "appended": "text added to the system prompt", "system_added": "a system prompt added later",
    "system_removed": "a system prompt left out", "history_edit": "an edited message", "cut": "old messages dropped",
    "inserted": "a message put between others", "order": "messages in another order", "settings": "other settings",
    "model": "a change of model", "expiry": "an entry that had run out", "other_lane": "a change of lane",
    "below_minimum": "a prefix too short to be cached", "dropped": "an entry that the provider let go",
}  # fmt: skip
"""Kind of a miss -> what it was, for people who read no code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Misses of one kind at one place of one app's prompts."""

    kind: str
    path: str
    team: str
    client: str
    model: str
    calls: int
    lost_tokens: int
    lost_nanos: int | None
    example: str
    """A call to look at with `tollway why`."""

    def json(self, days_us: int) -> dict[str, Any]:
        """`days_us`: how long the range is, for dollars a month."""
        month = None if self.lost_nanos is None or not days_us else self.lost_nanos * _MONTH_US // days_us
        return {
            "kind": self.kind, "path": self.path, "team": self.team, "client": self.client, "model": self.model,
            "calls": self.calls, "lost_tokens": self.lost_tokens, "lost_usd": usd(self.lost_nanos),
            "usd_a_month": usd(month), "advice": ADVICE.get(self.kind, ""), "example": self.example,
        }  # fmt: skip


def query(part: Slice) -> Select[*tuple[Any, ...]]:
    """One row for each kind, place, team, client and model."""
    keys = [
        C.miss["kind"].as_string().label("miss_kind"), C.miss["path"].as_string().label("miss_path"), C.team.label("team"),
        C.client.label("client"), C.model.label("model"),
    ]  # fmt: skip
    figures = [
        func.count().label("calls"), func.sum(sql_cast(C.miss["lost"].as_string(), BigInteger)).label("lost"),
        func.sum(sql_cast(C.miss["lost_nanos"].as_string(), BigInteger)).label("nanos"), func.max(C.call_id).label("example"),
    ]  # fmt: skip
    asked = part.apply(select(*keys, *figures)).where(C.miss.is_not(None), C.kind == "attempt")
    return asked.group_by("miss_kind", "miss_path", C.team, C.client, C.model)


def nth_latest_query(part: Slice, n: int) -> Select[*tuple[Any, ...]]:
    """When the n-th latest miss was; no row where there are fewer."""
    asked = part.apply(select(C.at_us)).where(C.miss.is_not(None))
    return asked.order_by(C.at_us.desc()).offset(n - 1).limit(1)


def causes(rows: list[dict[str, Any]]) -> list[Cause]:
    """The dearest first; places in messages are one, whichever message it was."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["miss_kind"] is not None:
            path = _INDEX.sub(r"\1/*", row["miss_path"] or "")
            found.setdefault((row["miss_kind"], path, row["team"], row["client"], row["model"]), []).append(row)
    merged = [
        Cause(
            kind=key[0], path=key[1], team=key[2], client=key[3], model=key[4],
            calls=sum(int(row["calls"]) for row in group), lost_tokens=sum(int(row["lost"] or 0) for row in group),
            lost_nanos=_sum([row["nanos"] for row in group]), example=max(row["example"] for row in group),
        )
        for key, group in found.items()
    ]  # fmt: skip
    return sorted(merged, key=lambda cause: (-(cause.lost_nanos or 0), -cause.lost_tokens))


def _sum(amounts: list[Any]) -> int | None:
    known = [int(amount) for amount in amounts if amount is not None]
    return sum(known) if known else None
