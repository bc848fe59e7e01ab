"""Health tells what it knows whether a gateway was heard or not, and has a test alert sent at a click."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import data
from gateway.ledger.reports import Reports
from tests.dashboard.opened import page

Look = Callable[[str], Reports]


def test_without_a_gateway_it_still_says_how_fresh_the_figures_are(look: Look) -> None:
    look("one")
    test = page("Health")
    assert "No gateway has said how it is yet" in test.info[0].value
    assert any("No roll-up has been made yet" in text.value for text in test.text)


def _operator() -> None:
    import streamlit  # runs as a script of its own

    from dashboard import app, data

    streamlit.session_state["secret"] = "an-admins"
    app.show("Health", data.Viewer(None, "someone"))


def test_a_click_sends_a_test_alert(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the key of whoever looks; what each channel answered is shown."""
    look("one")
    asked = []

    def send(secret: str) -> dict[str, str | None]:
        asked.append(secret)
        return {"ops": None, "mail": "refused"}

    monkeypatch.setattr(data, "test_alerts", send)
    test = AppTest.from_function(_operator, default_timeout=30).run()
    test.button(key="test-alert").click().run()
    assert not test.exception
    assert asked == ["an-admins"]
    assert [text.value for text in test.text[-2:]] == ["ops: taken", "mail: refused"]
