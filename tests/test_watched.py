"""Settings and policies become channels, bounds and budgets."""
from __future__ import annotations

from pathlib import Path

import pytest

from gateway import settings
from gateway.alerts import Alert
from gateway.ledger.reports import connect
from gateway.settings import SettingsError
from gateway.settings_file import File
from gateway.watched import bounds_of, channels_of, limits_of
from router_policies.files import PolicyStore
from tests.ledger.generate import entry, write

ALERTS = {
    "channels": {
        "ops": {"kind": "slack", "url": "env:OPS_URL"},
        "mail": {"kind": "email", "host": "mail.example.com", "sender": "a@x", "to": ["b@x"], "user": "u", "password": "env:MAIL", "teams": ["search"], "alerts": ["budget"]},
    },
    "spend_least_usd": 2.5,
}


def test_channels_have_their_secrets_and_choose(tmp_path: Path) -> None:
    made = settings.resolve(File.model_validate({"alerts": ALERTS}), tmp_path, {"OPS_URL": "https://hooks.example.com/x", "MAIL": "pw"})
    ops, mail = channels_of(made)
    assert ops.url is not None
    assert ops.url.reveal() == "https://hooks.example.com/x"
    assert "hooks" not in repr(ops)
    assert mail.mail is not None
    assert mail.mail.password is not None
    assert (mail.mail.host, mail.mail.password.reveal()) == ("mail.example.com", "pw")
    alert = Alert(id="x", kind="spend", team="search", title="", text="", at_us=0)
    assert (ops.wants(alert), mail.wants(alert)) == (True, False)
    assert bounds_of(made).spend_least_nanos == 2_500_000_000


def test_a_channel_that_cannot_work_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="email needs host"):
        File.model_validate({"alerts": {"channels": {"m": {"kind": "email"}}}})
    with pytest.raises(ValueError, match="needs url"):
        File.model_validate({"alerts": {"channels": {"m": {"kind": "webhook"}}}})
    with pytest.raises(SettingsError, match="OPS_URL"):
        settings.resolve(File.model_validate({"alerts": {"channels": {"ops": ALERTS["channels"]["ops"]}}}), tmp_path, {})    # type: ignore[index]


def test_teams_without_a_file_have_the_default_budgets(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "search.yaml").write_text("team: search\nbudgets:\n  - {name: own, limit_usd: 5, window: day}\n")
    (folder / "default.yaml").write_text("team: default\nbudgets:\n  - {name: cap, limit_usd: 1}\n")
    report = connect(write(tmp_path / "l.db", [entry(team="search"), entry(id="a-2", call_id="c-2", team="new")]))
    found = {(limit.team, limit.name, limit.limit_nanos, limit.window) for limit in limits_of(PolicyStore(folder), report)}
    assert found >= {("search", "own", 5_000_000_000, "day"), ("new", "cap", 1_000_000_000, "month")}
