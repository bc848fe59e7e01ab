"""One page of the dashboard, run without a browser."""
from __future__ import annotations

from collections.abc import Mapping

from streamlit.testing.v1 import AppTest

from dashboard.data import Viewer
from dashboard.run import ENTRY

ZONE = "Europe/Berlin"



def _script(title: str, team: str | None, project: str | None) -> None:
    from dashboard import app, data  # runs as a script of its own

    app.show(title, data.Viewer(team, "someone", project))


def asked(
    title: str, viewer: Viewer, address: Mapping[str, str | list[str]], widgets: Mapping[str, str] | None = None,
    timeout_s: float = 300,
) -> AppTest:  # fmt: skip
    """The page after its first run, as the address and what is chosen on it, by the widgets' keys, have it."""
    test = AppTest.from_function(_script, kwargs={"title": title, "team": viewer.team, "project": viewer.project}, default_timeout=timeout_s)
    for name, value in address.items():
        test.query_params[name] = value
    for name, chosen in (widgets or {}).items():
        test.session_state[name] = chosen
    test.run()
    assert not test.exception, test.exception
    return test


def page(title: str, viewer_team: str | None = None, **address: str) -> AppTest:
    """`asked`, all time in Berlin unless `address` says otherwise."""
    return asked(title, Viewer(viewer_team, "someone"), {"range": "all", "tz": ZONE, **address})


def whole() -> AppTest:
    """The app as Streamlit starts it, not run yet."""
    return AppTest.from_file(str(ENTRY), default_timeout=300)


def metrics(test: AppTest) -> dict[str, str]:
    """Label, without its escapes, to value."""
    return {metric.label.replace("\\", ""): metric.value for metric in test.metric}
