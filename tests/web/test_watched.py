"""Verdicts and alerts through a gateway: a team judges its own runs, an admin tries the channels, the dashboard hears of it."""
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dashboard import data
from gateway.cli import main
from gateway.ledger.reports import connect
from tests.build import ENV, PLAIN, Gateway, backend, chat_answer, chat_body
from tests.upstream import Site, Upstream, until, whole

CAPPED = {**PLAIN, "budgets": [{"name": "cap", "limit_usd": 100}]}


@pytest.fixture(scope="module")
def hook(upstream: Upstream) -> Site:
    return upstream.site("hook")


@pytest.fixture(scope="module", autouse=True)
def _often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.upkeep.EVERY_S", 0.2)
        yield


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory, upstream: Upstream, hook: Site) -> Iterator[Gateway]:
    site = upstream.site("judged")
    folder = tmp_path_factory.mktemp("watched")
    (folder / "hook").write_text(hook.url + "/in-secret")
    alerts = {"channels": {"ops": {"kind": "webhook", "url": f"file:{folder / 'hook'}"}}}
    with Gateway(folder, {"backends": {"b": backend(site)}, "alerts": alerts}, {"plain": CAPPED, "other": PLAIN}) as gateway:
        site.says(whole(chat_answer()))
        yield gateway


def test_a_team_judges_its_own_runs(gate: Gateway) -> None:
    own, foreign = gate.make_key("plain")["key"], gate.make_key("other")["key"]
    headers = {"x-tollway-run": "run-1", "x-tollway-subgoal": "edit"}
    assert gate.chat(chat_body("m-judged"), team="plain", headers=headers).status_code == 200
    until(lambda: gate.ask("GET", "/tollway/runs/run-1", key=own).status_code == 200, "the database to have the call")
    path, said = "/tollway/runs/run-1/subgoals/edit", {"passed": True, "evidence": "3 tests pass"}
    assert gate.ask("POST", path, key=foreign, json=said).status_code == 404
    assert gate.ask("POST", path, key=own, json={"evidence": "x"}).status_code == 400
    made = gate.ask("POST", path, key=own, json=said)
    assert (made.status_code, made.json()["passed"]) == (201, True)

    def judged() -> Any:
        found = gate.ask("GET", "/tollway/runs/run-1", key=own).json()
        return found if found["subgoals"][0]["verdict"] else None

    run: dict[str, Any] = until(judged, "the database to have the verdict")
    (goal,) = run["subgoals"]
    assert (goal["subgoal"], goal["calls"], goal["verdict"]["evidence"]) == ("edit", 1, "3 tests pass")
    assert run["calls"] == 1


def test_channels_are_tried_by_an_admin(gate: Gateway, hook: Site) -> None:
    hook.says(whole({}))
    assert gate.ask("POST", "/tollway/admin/alerts/test", key=gate.make_key("plain")["key"]).status_code == 403
    assert gate.ask("POST", "/tollway/admin/alerts/test").json() == {"channels": {"ops": None}}
    assert b"in-secret" not in hook.requests[-1].body
    found = gate.ask("GET", "/tollway/admin/alerts").json()
    assert found["channels"] == [{"name": "ops", "kind": "webhook"}]
    assert found["told"] == []


def test_the_dashboard_hears_how_the_gateway_is(gate: Gateway) -> None:
    """By way of the database, within a turn of the upkeep."""
    report = connect(f"sqlite:///{gate.folder}/data/tollway.db")
    until(lambda: bool(report.status()), "the status")
    (status,) = report.status()
    assert status["database"] == "ok"
    assert {lane["lane"] for lane in status["lanes"]} == {"b/standard"}
    assert [(b["team"], b["limit_nanos"]) for b in status["budgets"]] == [("plain", 100_000_000_000)]
    assert "in-secret" not in str(status)


def told(*argv: str) -> str:
    done = CliRunner().invoke(main, argv, env=ENV)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_run_is_replayed_and_what_came_of_it_is_kept(gate: Gateway, tmp_path: Path) -> None:
    """`policy trace` and the endpoint give the same; a backtest of it stands in the audit trail, for an admin's key only."""
    own, foreign = gate.make_key("plain")["key"], gate.make_key("other")["key"]
    for _ in range(2):
        assert gate.chat(chat_body("m-judged"), team="plain", headers={"x-tollway-run": "run-2"}).status_code == 200
    path, report = "/tollway/runs/run-2/trace", connect(f"sqlite:///{gate.folder}/data/tollway.db")
    until(lambda: report.run_trace("run-2") is not None and len(report.run_trace("run-2")["trace"]) == 2, "the calls in the database")
    found = gate.ask("GET", path, key=own).json()
    assert [(line["prompt_tokens"], line["output_tokens"], line["team"]) for line in found["trace"]] == [(100, 5, "plain")] * 2
    assert gate.ask("GET", path, key=foreign).status_code == 404
    to = ("--url", gate.url, "--key")
    text = told("policy", "trace", "run-2", *to, own)
    assert [json.loads(line) for line in text.splitlines()] == found["trace"]
    (tmp_path / "run.jsonl").write_text(text)
    teams, config = str(gate.folder / "teams"), str(gate.folder / "tollway.yaml")
    args = ("policy", "backtest", teams, teams, "--config", config, "--trace", str(tmp_path / "run.jsonl"), "--json", "--keep", *to)
    assert CliRunner().invoke(main, [*args, own], env=ENV).exit_code != 0
    assert report.backtests() == []
    result = json.loads(told(*args, gate.admin_key))
    (kept,) = report.backtests()
    assert (kept["title"], kept["result"]) == (f"{teams} to {teams}", result)
    assert result["calls"] == 2
    assert gate.ask("POST", "/tollway/admin/backtests", json={"title": "x", "result": {"all": 5}}).status_code == 400


def test_the_dashboard_has_a_test_alert_sent(gate: Gateway, hook: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the gateway, for an admin; what each channel answered comes back, and so does why not."""
    hook.says(whole({}))
    monkeypatch.setenv("TOLLWAY_URL", gate.url)
    before = len(hook.requests)
    assert data.test_alerts(gate.admin_key) == {"ops": None}
    assert len(hook.requests) == before + 1
    assert "admin" in str(data.test_alerts(gate.make_key("plain")["key"])["gateway"])
    monkeypatch.setenv("TOLLWAY_URL", "http://127.0.0.1:1")
    assert "does not answer" in str(data.test_alerts(gate.admin_key)["gateway"])
