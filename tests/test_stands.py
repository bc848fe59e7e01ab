"""What a call stands under follows from its team's policy and from who pays."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.core.call import Call, Sketch, Tenant
from gateway.core.part import Block, Part
from gateway.stands import Stands
from router_policies.files import load_file
from router_policies.rules import Policy
from tests.build import write_policy


@pytest.fixture
def policy(tmp_path: Path) -> Any:
    def made(**fields: Any) -> Policy:
        (tmp_path / "teams").mkdir(exist_ok=True)
        write_policy(tmp_path, "search", fields)
        return load_file(tmp_path / "teams" / "search.yaml")

    return made


def call(**fields: Any) -> Call:
    tenant = Tenant(team="search", project="web", key_id="k1", user="ann")
    sketch = Sketch(model="fast", stream=False, spans={})
    return Call(**{"id": "c", "dialect": "openai_chat", "tenant": tenant, "sketch": sketch, "body": b"", "path": "/", "client": "", **fields})


def saying(*names: int) -> Call:
    """A call whose prompt has parts of these names."""
    parts = [Part(0, 1, "messages", n, Block(name=name, size=1, weight=1, marked=False)) for n, name in enumerate(names)]
    return call(sketch=Sketch(model="fast", stream=False, spans={}, parts=parts))


def test_budgets_become_accounts_of_who_pays(policy: Any) -> None:
    """By the model that runs, not the name the client wrote; without a run or tag, such budgets do not apply."""
    scopes = ["team", "project", "key", "user", "model", "run", "tag:job"]
    found = policy(budgets=[{"name": scope.replace(":", "-"), "limit_usd": 1, "scope": scope} for scope in scopes])
    stands = Stands()
    assert [a.id for a in stands.accounts(found, call(run="r1", tags={"job": "n"}), "m-1")] == [
        "search/team", "search/project/project:web", "search/key/key:k1", "search/user/user:ann", "search/model/model:m-1", "search/run/run:r1",
        "search/tag-job/tag:job:n",
    ]  # fmt: skip
    assert len(stands.accounts(found, call(), "m-1")) == 5


def test_accounts_are_worked_out_once_for_a_payer(policy: Any) -> None:
    """And anew when the policy changes."""
    found = policy(budgets=[{"name": "cap", "limit_usd": 1}])
    stands = Stands()
    assert stands.accounts(found, call(), "a") is stands.accounts(found, call(), "b")
    changed = policy(budgets=[{"name": "cap", "limit_usd": 2}])
    assert stands.accounts(changed, call(), "a")[0].rule.limit_nanos == 2_000_000_000


def test_an_alert_only_counts(policy: Any) -> None:
    """Its account refuses nothing."""
    found = policy(budgets=[{"name": "seen", "limit_usd": 1, "on_exhausted": "alert"}, {"name": "cap", "limit_usd": 1, "status": 429}])
    assert [(a.enforced, a.rule.status) for a in Stands().accounts(found, call(), "m")] == [(False, 402), (True, 429)]


def test_limits_become_gates(policy: Any) -> None:
    """Those of the team, and of each key and model; a second attempt is no request of the client."""
    found = policy(limits={
        "requests_per_minute": 60, "tokens_per_minute": 5_000, "concurrent": 4,
        "rates": [{"name": "keys", "scope": "key", "requests_per_minute": 6}, {"name": "big", "scope": "model", "models": ["m-*"], "concurrent": 1}],
    })  # fmt: skip
    stands = Stands()
    first = stands.gates(found, call(), "m-1", 700)
    assert [(g.id, g.limit, g.units) for g in first] == [
        ("search/requests", 60, 1), ("search/tokens", 5_000, 700), ("search/concurrent", 4, 1), ("search/keys/requests/key:k1", 6, 1),
        ("search/big/concurrent/model:m-1", 1, 1),
    ]  # fmt: skip
    assert {g.kind for g in stands.gates(found, call(), "other", 700, first=False)} == {"tokens", "concurrent"}
    (money,) = stands.gates(policy(limits={"rates": [{"name": "runs", "scope": "key", "usd_per_minute": 1.5}]}), call(), "m-1", 700)
    assert (money.id, money.limit, money.units) == ("search/runs/spend/key:k1", 1_500_000_000, 0)
    assert money.says == "team search, key k1, may spend 1.5 USD a minute"
    same = [stands.gates(policy(limits={"same_prompt_per_minute": 3}), asked, "m-1", 700) for asked in (saying(1), saying(2), saying(1), call())]
    assert same[0] == same[2] != same[1]
    assert (same[0][0].limit, same[0][0].units, same[3]) == (3, 1, ())
    assert first[3].says == "team search, key k1, may start 6 calls a minute"
    assert stands.gates(policy(), call(), "m-1", 700) == ()


@pytest.mark.parametrize(("fields", "says"), [
    ({"budgets": [{"name": "a", "limit_usd": 1, "scope": "planet"}]}, "tag:NAME"),
    ({"budgets": [{"name": "a", "limit_usd": 1, "on_exhausted": "downgrade"}]}, "needs `downgrade`"),
    ({"budgets": [{"name": "a", "limit_usd": 1, "downgrade": {"model": "m"}}]}, "needs `on_exhausted: downgrade`"),
    ({"budgets": [{"name": "a", "limit_usd": 1, "on_exhausted": "downgrade", "downgrade": {}}]}, "says nothing"),
    ({"budgets": [{"name": "a", "limit_usd": 1, "status": 500}]}, "status"),
    ({"limits": {"rates": [{"name": "a", "scope": "key"}]}}, "limits nothing"),
    ({"limits": {"rates": [{"name": "a", "concurrent": 1}, {"name": "a", "concurrent": 2}]}}, "this name already"),
])  # fmt: skip
def test_what_means_nothing_is_refused(policy: Any, fields: dict[str, Any], says: str) -> None:
    """With file and line, before it is in force."""
    with pytest.raises(Exception, match=says):
        policy(**fields)
