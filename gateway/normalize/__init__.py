"""Makes the fixed part of a prompt the same bytes in every call, by passes that each say how safe they are.

A pass is a plain callable in `PASSES`; its position is the design decision. Levels, each including those before:

    off          nothing is touched
    lossless     the model sees the same tokens: only the JSON form around them changes
    equivalent   the order of a set that has no order (tools, keys of a schema) may change, known nonces are dropped
    relocating   volatile text may move behind the fixed part

What the client marked itself is never touched, nor are bodies of subscription clients, nor a conversation under way: what
was decided at its first turn holds to its last, and one that is met in the middle goes on as it came. A pass that cannot
read a request leaves it as it is and says so in a receipt; normalizing never makes an error.
"""
from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

from gateway.core.part import Part
from gateway.dialects.splice import Spans, splice
from gateway.normalize.billing import client_billing
from gateway.normalize.first_form import first_form
from gateway.normalize.memory import Memory, Session
from gateway.normalize.view import Pass, Unreadable, View
from gateway.normalize.volatile_last import volatile_last

__all__ = [
    "LEVELS", "PASSES", "Change", "Memory", "Normalized", "View", "idle", "normalize", "note", "restored", "subscription",
]

LEVELS = ("off", "lossless", "equivalent", "relocating")
PASSES: tuple[tuple[str, Pass], ...] = (
    ("lossless", first_form),       # from `equivalent` on it also knows orders
    ("equivalent", client_billing),
    ("relocating", volatile_last),
)
"""(least level, pass), in the order in which they run."""
_log = logging.getLogger("tollway.normalize")


class Change(msgspec.Struct, frozen=True):
    """One edit of a body, with its receipt; without bytes it is a note on what was left as it came, and why."""

    start: int
    before: bytes
    after: bytes
    receipt: dict[str, object]


class Normalized(msgspec.Struct, frozen=True):
    """The body as it goes on, where its fields and parts stand now, and what was done."""

    body: bytes
    spans: Spans
    parts: Sequence[Part]
    changes: Sequence[Change]


def subscription(headers: Mapping[str, str]) -> bool:
    """Whether the client is one that pays by subscription, by headers that only those send: its bodies are never changed."""
    return "chatgpt-account-id" in headers or "oauth-" in headers.get("anthropic-beta", "")


def idle(level: str, spans: Spans, headers: Mapping[str, str]) -> bool:
    """Whether no pass of that level would find anything: without tools, a lossless one has nothing to look at."""
    return level == "lossless" and "tools" not in spans and not subscription(headers)


def normalize(memory: Memory, view: View) -> Normalized:
    """Runs the passes of the view's level. O(bytes of tools and system) where those are new, else one hash of the tools."""
    changes: list[Change] = []
    if subscription(view.headers):
        return Normalized(view.body, view.spans, view.parts, [_left("all", "", "a subscription client's")])
    session, talk = memory.session(view), view.talk
    level = LEVELS.index(session.level)
    for least, each in PASSES:
        if level >= LEVELS.index(least) and view.switches.get(each.__name__, True):
            view = _run(each, memory, session, view, changes)
    memory.tell(talk.id, session)
    return Normalized(view.body, view.spans, view.parts, changes)


def _run(each: Pass, memory: Memory, session: Session, view: View, changes: list[Change]) -> View:
    """The view after one pass; as it was where the pass cannot read it."""
    try:
        edits = each(memory, session, view)
        after = view.edited([(start, end, new) for _, start, end, new in edits]) if edits else view
    except Unreadable as odd:
        changes.append(_left(each.__name__, odd.place, odd.why))
        return view
    except Exception as fault:  # a fault of ours must not cost the call
        _log.exception("the pass %s failed and was left out", each.__name__)
        changes.append(_left(each.__name__, "", f"the pass failed ({type(fault).__name__})"))
        return view
    shift = 0
    for place, start, end, new in sorted(edits, key=lambda edit: edit[1]):
        old = view.body[start:end]
        receipt: dict[str, object] = {"pass": each.__name__, "place": place, "before": _hash(old), "after": _hash(new)}
        changes.append(Change(start + shift, old, new, receipt))
        shift += len(new) - len(old)
    return after


def restored(body: bytes, changes: Sequence[Change]) -> bytes:
    """The client's own body, from what went out and the changes; the inverse of `normalize`."""
    for change in reversed(changes):
        body = splice(body, [(change.start, change.start + len(change.after), change.before)])
    return body


def note(receipt: dict[str, object]) -> Change:
    """A receipt that stands for no change."""
    return Change(0, b"", b"", receipt)


def _left(name: str, place: str, why: str) -> Change:
    return note({"pass": name, "place": place, "left": why})


def _hash(value: bytes) -> str:
    return sha256(value).hexdigest()[:16]
