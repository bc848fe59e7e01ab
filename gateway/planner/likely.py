"""What a request says by itself about whether its beginning comes again: all there is to go by before anything is known.

Agents send tools to choose from and what these have said, and go on; and a very long prompt is seldom written for one call.
Of other requests nothing is taken for granted: whether they come again is learnt without paying for a write.
"""
from __future__ import annotations

import re

from gateway.planner.asking import Laid
from gateway.planner.caches import MARK
from gateway.planner.marks import blocks
from gateway.planner.places import Page
from gateway.planner.values import SHARED, Sight

_TOLD = re.compile(rb'"(?:role|type)"\s*:\s*"(?:tool|tool_result|function_call_output)"')
_LONG_BYTES = 65_536
_MARK = b'"%s"' % MARK.encode()


def agent(page: Page) -> bool:
    """Whether it may choose among several tools, or brings what one has said; one that has to call a certain tool fills in a
    form, mostly once."""
    tools, choice = page.spans.get("tools"), page.spans.get("tool_choice")
    if tools is None or (choice is not None and b'"name"' in page.body[slice(*choice)]):
        return False
    return _many(page) or _TOLD.search(page.body, *page.parts[-1].span) is not None


def hopeful(page: Page) -> bool:
    """Whether it is taken for one that comes again until it is known better; a client that sets marks thinks so itself."""
    return page.ends[-1] >= _LONG_BYTES or (page.marked and _MARK in page.body) or agent(page)


def sure(page: Page, laid: Laid, sight: Sight) -> int:
    """Index of the last of its places up to which that is so; -1: none. An agent begins with tools and system prompt as others
    do, and goes on once it has begun; of what is long all but the end."""
    places, last = laid.places, len(laid.places) - 1
    if agent(page):
        shared = max([n for n, place in enumerate(places) if place.kind in SHARED], default=-1)
        return last if sight.under_way else shared
    return last - 1 if last and places[last - 1].end_bytes >= _LONG_BYTES else -1


def _many(page: Page) -> bool:
    """Whether it has more than one tool."""
    for part in page.parts:
        if part.field == "tools":
            block = part.block
            if block.inner is None:
                block.inner = (len(blocks(page.body, part.span)), 0)
            return block.inner[0] > 1
    return False
