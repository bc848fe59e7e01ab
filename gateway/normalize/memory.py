"""What normalizing remembers: forms of tools, conversations and what was decided for them, what varies in an app's prompts.

Everything is keyed by isolation domain and bounded, oldest out first. Nothing outlives the process: a conversation that
a new process meets in the middle goes on as it comes.
"""
from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

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


class Memory:
    """One per process."""

    def __init__(self) -> None:
        self.forms = Forms()
        self.apps = Apps()
        self._sessions: OrderedDict[tuple[str, bytes], Session] = OrderedDict()
        self._placed = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def session(self, view: View) -> Session:
        """The conversation's decisions. Kept only where there is something to decide: tools, or a prompt that may be moved."""
        talk = view.talk
        key = view.domain, talk.id
        known = self._sessions.get(key)
        if known is not None:
            self._sessions.move_to_end(key)
            return known
        fresh = Session(view.level, adopted=talk.under_way)
        if talk.id and (view.level == "relocating" or "tools" in view.spans):
            self._sessions[key] = fresh
            if len(self._sessions) > _MAX_SESSIONS:
                self._forget()
        return fresh

    def place(self, session: Session, where: bytes, text: str) -> bool:
        """Notes that `text` stands behind a message for good; False where the conversation has too many of them."""
        if where not in session.placed:
            if len(session.placed) >= _MAX_PLACED_EACH:
                return False
            self._placed += 1
        session.placed[where] = text
        while self._placed > _MAX_PLACED and len(self._sessions) > 1:
            self._forget()
        return True

    def _forget(self) -> None:
        _, gone = self._sessions.popitem(last=False)
        self._placed -= len(gone.placed)
