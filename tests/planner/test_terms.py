"""How much of a plan is placed: what the provider does by itself is left only as far as the client's account covers it."""
from __future__ import annotations

import pytest

from gateway.planner.bets import SHARE
from gateway.planner.reuse import EDGES_S, Chance
from tests.planner.test_planner import LONG, marks, plan, planner


@pytest.mark.parametrize("calls", [40, 400])
def test_prompts_that_never_come_again_cost_little_more(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At Qwen, however surely they are thought to come again: the first write, a quarter of a prompt, and half a percent."""
    one, habit, paid = planner(), 0, 0.0
    monkeypatch.setattr(one.reuse, "chance", lambda *_: Chance((0.95,) * len(EDGES_S)))
    for number in range(calls):
        body, found = plan(one, {"messages": [{"role": "user", "content": f"{number} {LONG}"}]}, "qwen", at_s=number * 30.0)
        assert found is not None
        written = 1_500 if marks(body) else 0
        one.learn(found, read_tokens=0, input_tokens=1_500, at_us=number * 30_000_000, written={"5m": written})
        habit, paid = habit + 1_500, paid + 0.25 * written
    assert 0 < paid <= 0.25 * 1_500 + SHARE * habit


def test_nothing_is_left_out_while_the_account_is_behind() -> None:
    """Prompts that never come again are soon not stored at OpenAI, but not after a loss that earlier savings do not cover."""
    one = planner()
    for number in range(60):
        sent, found = plan(one, {"messages": [{"role": "user", "content": f"{number} {LONG}"}]}, "openai", at_s=number * 30.0)
    assert sent["prompt_cache_options"] == {"mode": "explicit"}
    assert found is not None
    assert found.stake is not None
    one.bets.enter(found.stake._replace(planned=found.stake.habit + 60 * 1_500))
    sent, _ = plan(one, {"messages": [{"role": "user", "content": f"61 {LONG}"}]}, "openai", at_s=1_830.0)
    assert "prompt_cache_options" not in sent
