"""The form of the tools that was seen first travels: in a conversation its own first, for a new one its domain's.

Some clients send the same tools in another order, or the same JSON with other white space or key order, from call to
call; each such difference is a new prefix to a cache. Lossless: white space and string escapes. Equivalent: the order of
the tools and of keys too. Whatever a client sends consistently is therefore never touched.
"""
from __future__ import annotations

from gateway.dialects.marking import marked
from gateway.normalize.memory import Memory, Session
from gateway.normalize.view import Change, Unreadable, View

PLACE = "/tools"


def first_form(memory: Memory, session: Session, view: View) -> list[Change]:
    """Tools that the client marked itself are left alone. Raises `Unreadable` for what is no list of objects."""
    span = view.spans.get("tools")
    if span is None or span[1] - span[0] <= 4:  # none, null, []
        return []
    start, end = span
    value = view.body[start:end]
    if marked(value):
        return []
    found = memory.forms.kind(view.domain, value, sets=session.level != "lossless")
    if found is None:
        raise Unreadable(PLACE, "not a list of objects")
    form, kind = found
    wanted = session.forms.get(kind)
    if wanted is None:
        wanted = form if session.adopted else memory.forms.first(kind, form, value)
        session.forms[kind], session.changed = wanted, True
    if wanted == form:
        memory.forms.keep(form, value)
        return []
    other = memory.forms.value(wanted)
    if other is None:
        session.forms[kind], session.changed = form, True
        memory.forms.keep(form, value)
        return []
    return [(PLACE, start, end, other)]
