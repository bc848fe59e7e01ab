"""A saving is told only where conversations that went without it show it, and its interval is honest."""
from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gateway.ledger.savings import LEAST, Session, _quantile, saving, savings


def drawn(rng: Random, n: int, rate: float) -> list[Session]:
    """Conversations of very different lengths that save about `rate` nano-dollars a token."""
    return [Session(saved=tokens * rng.gauss(rate, 300), tokens=tokens) for tokens in (rng.lognormvariate(9, 1) for _ in range(n))]


def test_few_conversations_tell_nothing() -> None:
    rng = Random(1)
    for on, held in ((1_000, LEAST - 1), (LEAST - 1, 1_000), (0, 0)):
        found = saving("normalize", drawn(rng, on, 500), drawn(rng, held, 100), 1)
        assert found.nanos is None
        assert "not enough data" in found.json()["note"]
        assert found.json()["saved_usd"] is None


@pytest.mark.parametrize(("on", "held"), [(2_000, 40), (400, 100)])
def test_the_interval_covers_the_truth_as_often_as_it_says(on: int, held: int) -> None:
    rng, covered = Random(7), 0
    for _ in range(200):
        treated = drawn(rng, on, 500)
        found = saving("normalize", treated, drawn(rng, held, 200), 1)
        truth = 300 * sum(session.tokens for session in treated)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert 0.88 <= covered / 200 <= 1.0


def test_no_effect_is_no_saving() -> None:
    rng = Random(3)
    wrong = 0
    for _ in range(100):
        found = saving("normalize", drawn(rng, 500, 300), drawn(rng, 100, 300), 1)
        assert found.low is not None
        assert found.high is not None
        wrong += not found.low <= 0 <= found.high
    assert wrong <= 15


def test_students_quantiles() -> None:
    for freedom, true in ((19, 2.093), (30, 2.042), (100, 1.984)):
        assert _quantile(freedom) == pytest.approx(true, abs=0.003)


def row(session: str, held: bool, saved: int, at_us: int, **levers: bool) -> dict[str, Any]:
    receipt = {"pass": "arm", "place": session, "held": {"normalize": held, **levers}}
    costs = {"cost_nanos": 100, "uncached_cost_nanos": 100 + saved}
    return {"receipts": [{"pass": "first_form", "place": "/tools"}, receipt], **costs, "prompt": 10, "at_us": at_us}


def test_rows_are_summed_by_conversation_and_lever() -> None:
    rows = [row(f"s{n % 30}", n % 30 < 25 and n % 2 == 0, 50, 200 - n, marks=False) for n in range(120)]
    found = {one.lever: one for one in savings(rows)}
    assert (found["normalize"].held_out, found["normalize"].sessions) == (13, 17)
    assert (found["marks"].held_out, found["marks"].sessions) == (0, 30)
    assert {one.since_us for one in found.values()} == {200 - 119}
