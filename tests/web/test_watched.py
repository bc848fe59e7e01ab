"""Verdicts and alerts through a gateway: a team judges its own runs, an admin tries the channels, the dashboard hears of it."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.ledger.reports import connect
from tests.build import PLAIN, Gateway, backend, chat_answer, chat_body
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
    path, said = "/tollway/runs/run-1/subgoals/edit", {"passed": True, "evidence": "3 tests pass"}
    assert gate.ask("POST", path, key=foreign, json=said).status_code == 404
    assert gate.ask("POST", path, key=own, json={"evidence": "x"}).status_code == 400
    made = gate.ask("POST", path, key=own, json=said)
    assert (made.status_code, made.json()["passed"]) == (201, True)
    run = gate.ask("GET", "/tollway/runs/run-1", key=own).json()
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
    until(lambda: bool(report.status()), "the status", 40)
    (status,) = report.status()
    assert status["database"] == "ok"
    assert {lane["lane"] for lane in status["lanes"]} == {"b/standard"}
    assert [(b["team"], b["limit_nanos"]) for b in status["budgets"]] == [("plain", 100_000_000_000)]
    assert "in-secret" not in str(status)
