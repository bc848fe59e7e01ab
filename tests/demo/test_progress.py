from __future__ import annotations

import io

import pytest
from rich.console import Console

from gateway.demo.progress import Shown
from gateway.demo.replay import Side, Turn
from gateway.demo.sessions import Session
from tests.demo.conftest import session

SIDE = Side("nightly", False, "key")


def shown(console: Console, codes: list[str | None]) -> None:
    one = Session.model_validate(session("s", 4))
    with Shown(console, [one], [SIDE]) as progress:
        for number, code in enumerate(codes, start=1):
            progress.tell(SIDE, one, Turn(session="s", team="nightly", number=number, code=code))
        progress.tell(SIDE, one, None)


@pytest.mark.parametrize(("terminal", "environment"), [(False, {}), (True, {"TERM": "dumb"})])
def test_where_no_bar_can_be_drawn_a_line_tells_of_each_session(terminal: bool, environment: dict[str, str]) -> None:
    """No control characters in a log file or on a dumb terminal."""
    out = io.StringIO()
    shown(Console(file=out, force_terminal=terminal, width=100, _environ=environment), [None, "context_length_exceeded"])
    text = out.getvalue()
    assert text.endswith("nightly 1/1: s, 1 of 4 turns answered, then context_length_exceeded\n")
    assert "\x1b" not in text


def test_a_bar_reaches_its_end_though_a_session_ended_early() -> None:
    out = io.StringIO()
    shown(Console(file=out, force_terminal=True, width=120, _environ={"TERM": "xterm"}), [None, "context_length_exceeded"])
    assert "4/4" in out.getvalue()
    assert "sessions 1/1" in out.getvalue()
