"""One page of the dashboard, run without a browser."""
from __future__ import annotations

from streamlit.testing.v1 import AppTest

from dashboard.run import ENTRY

ZONE = "Europe/Berlin"


def _script(title: str, team: str | None) -> None:
    from dashboard import app, data  # runs as a script of its own

    app.show(title, data.Viewer(team, "someone"))


def page(title: str, viewer_team: str | None = None, **address: str) -> AppTest:
    """The page after its first run; `address` are query parameters, all time in Berlin unless they say otherwise."""
    test = AppTest.from_function(_script, kwargs={"title": title, "team": viewer_team}, default_timeout=30)
    for name, value in {"range": "all", "tz": ZONE, **address}.items():
        test.query_params[name] = value
    test.run()
    assert not test.exception, test.exception
    return test


def whole() -> AppTest:
    """The app as Streamlit starts it, not run yet."""
    return AppTest.from_file(str(ENTRY), default_timeout=30)


def metrics(test: AppTest) -> dict[str, str]:
    """Label, without its escapes, to value."""
    return {metric.label.replace("\\", ""): metric.value for metric in test.metric}
