"""What normalizing remembers: forms of tools, conversations and what was decided for them, what varies in an app's prompts.

Everything is keyed by isolation domain and bounded, oldest out first. Processes that share it (`sharing.py`) treat a
conversation alike; one that none of them knows goes on as it comes.
"""
from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from gateway.core.patterns import NAMES
from gateway.normalize.apps import Apps, Known
from gateway.normalize.forms import Forms
from gateway.normalize.view import View

_MAX_SESSIONS = 20_000
_MAX_PLACED, _MAX_PLACED_EACH = 200_000, 1_000


@dataclass(slots=True)
class Session:
    """What was decided when a conversation began. `adopted`: it was under way already, so it stays as it is."""

    level: str
    adopted: bool = False
    forms: dict[bytes, bytes] = field(default_factory=dict)
    """Kind of a tool list -> the form that stands for it in this conversation."""
    known: dict[str, Known] = field(default_factory=dict)
    """Place of a system prompt -> which of its lines stay and which are volatile."""
    placed: dict[bytes, str] = field(default_factory=dict)
    """Digest of the messages up to one -> the volatile text that was put behind that one."""
    changed: bool = True
    """Since it was last told to other processes."""
    news: list[bytes] = field(default_factory=list)
    """What was placed since."""


class Shared(msgspec.Struct, array_like=True):
    """A conversation as another process hears of it; `placed` has what is new."""

    level: str
    adopted: bool
    forms: dict[bytes, bytes]
    known: dict[str, tuple[list[int], bytes, list[int]]]
    placed: dict[bytes, str]


class Memory:
    """One per process."""

    def __init__(self) -> None:
        self.forms = Forms()
        self.apps = Apps()
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        """By the conversation's name, which its isolation domain and model are part of."""
        self._placed = 0
        self.fresh: dict[bytes, Shared] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def session(self, view: View) -> Session:
        """The conversation's decisions. Kept only where there is something to decide: tools, or a prompt that may be moved."""
        talk = view.talk
        known = self._sessions.get(talk.id)
        if known is not None:
            self._sessions.move_to_end(talk.id)
            return known
        fresh = Session(view.level, adopted=talk.under_way)
        if talk.id and (view.level == "relocating" or "tools" in view.spans):
            self._sessions[talk.id] = fresh
            if len(self._sessions) > _MAX_SESSIONS:
                self._forget()
        return fresh

    def tell(self, name: bytes, session: Session) -> None:
        """Has the other processes hear what a call changed in a conversation."""
        if self.fresh is None or not session.changed or name not in self._sessions:
            return
        waiting = self.fresh.get(name)
        news = {where: session.placed[where] for where in session.news if where in session.placed}
        known = {path: (list(one.slots), one.kept.tobytes(), list(one.left)) for path, one in session.known.items()}
        placed = news if waiting is None else {**waiting.placed, **news}
        self.fresh[name] = Shared(session.level, session.adopted, dict(session.forms), known, placed)
        session.changed = False
        session.news.clear()

    def take(self, pairs: Iterable[tuple[bytes, Shared]]) -> None:
        """What other processes decided; one that met a conversation in the middle overrules nobody."""
        for name, told in pairs:
            session = self._sessions.get(name)
            if session is None or (session.adopted and not told.adopted):
                session = self._sessions[name] = Session(told.level, adopted=told.adopted)
                if len(self._sessions) > _MAX_SESSIONS:
                    self._forget()
            elif told.adopted:
                continue
            session.forms.update(told.forms)
            session.known = {
                path: Known(frozenset(slots), array(NAMES, kept), frozenset(left))
                for path, (slots, kept, left) in told.known.items()
            }
            for where, text in told.placed.items():
                self.place(session, where, text)
            session.changed = False
            session.news.clear()

    def place(self, session: Session, where: bytes, text: str) -> bool:
        """Notes that `text` stands behind a message for good; False where the conversation has too many of them."""
        if where not in session.placed:
            if len(session.placed) >= _MAX_PLACED_EACH:
                return False
            self._placed += 1
        session.placed[where] = text
        session.news.append(where)
        session.changed = True
        while self._placed > _MAX_PLACED and len(self._sessions) > 1:
            self._forget()
        return True

    def _forget(self) -> None:
        _, gone = self._sessions.popitem(last=False)
        self._placed -= len(gone.placed)
