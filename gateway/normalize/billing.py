"""A well-known coding client begins its system prompt with a billing line that has a fresh hash in every call.

Its own provider takes the line out before the model sees it; any other server renders it, so that the very first tokens
differ from call to call and nothing is ever reused. It is dropped for all but the native upstream.
"""
from __future__ import annotations

import re

from gateway.normalize.memory import Memory, Session
from gateway.normalize.system import instructions, replaced
from gateway.normalize.view import Change, View

HEADER = "x-anthropic-billing-header:"
_RAW = HEADER.encode()
_LINE = re.compile(r"^[ \t]*x-anthropic-billing-header:[^\n]*(?:\n|\Z)", re.MULTILINE)


def client_billing(memory: Memory, session: Session, view: View) -> list[Change]:
    """Equivalent: the line says nothing to the model. Needs no memory, so it holds in every turn of a conversation."""
    if _RAW not in view.body or view.native():
        return []
    return [
        replaced(view, found, _LINE.sub("", found.text)) for found in instructions(view) if _LINE.search(found.text)
    ]
