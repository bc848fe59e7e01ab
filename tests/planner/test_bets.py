"""What plans may lose: whatever comes, no more than their share, what they have won before, and the first free bets."""
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.planner.bets import SHARE, Bets, Limit
from gateway.planner.values import Stake

HALF_HOUR_US = 1_800_000_000
NONE = Limit(0)


def stake(habit: float, planned: float, tokens: int = 1_000) -> Stake:
    return Stake("app", tokens, habit, planned, 0.1, {"5m": 1.25, "1h": 2.0})


@given(st.integers(0, 4), st.lists(st.tuples(st.floats(1, 1e4), st.floats(0, 2), st.floats(0, 1)), max_size=60))
def test_writes_lose_no_more_than_their_share_and_the_free_bets(free: int, calls: list[tuple[float, float, float]]) -> None:
    """Each bet costs up to so much of a prompt; the worst of adversaries lets none of them win, others some."""
    bets, spent, lost, advances = Bets(), 0.0, 0.0, [0.0]
    for number, (tokens, premium, wins) in enumerate(calls):
        cost = premium * tokens
        placed = bets.covers("app", cost, Limit(free))
        if placed and cost > max(SHARE * spent, *advances) - lost + 1e-6:
            advances.append(lost + cost)
        change = cost if placed and number % 2 else -wins * tokens if wins > 0.9 else cost * placed
        bets.enter(stake(tokens, tokens + change))
        spent, lost = spent + tokens, lost + change
        assert lost <= max(SHARE * spent, *advances) + 1e-6
    assert len(advances) <= free + 1


def test_a_free_bet_is_an_advance_on_the_share() -> None:
    """It is no more that may be lost once the share has come to as much."""
    bets = Bets()
    assert bets.covers("app", 100, Limit(1))
    bets.enter(stake(habit=1_000, planned=1_100))
    assert not bets.covers("app", 1, Limit(1))
    bets.enter(stake(habit=99 / SHARE, planned=99 / SHARE))
    assert not bets.covers("app", 5, Limit(1))
    bets.enter(stake(habit=5 / SHARE, planned=5 / SHARE))
    assert bets.covers("app", 5, Limit(1))


@given(st.lists(st.tuples(st.floats(1, 1e4), st.booleans(), st.integers(1, 3_000)), max_size=60))
def test_what_is_left_out_is_covered_until_it_is_decided(calls: list[tuple[float, bool, int]]) -> None:
    """Each prompt that was not stored saves a quarter of it, and costs 1.15 of it if it comes again within half an hour."""
    bets, spent, lost, open_, now_us = Bets(), 0.0, 0.0, dict[int, tuple[int, float]](), 0
    for number, (tokens, comes, gap_s) in enumerate(calls):
        now_us += gap_s * 1_000_000
        back = [key for key, (until, _) in open_.items() if until > now_us] if comes else []
        bets.came("app", back, now_us)
        missed = sum(open_[key][1] for key in back)
        open_ = {key: each for key, each in open_.items() if key not in back and each[0] > now_us}
        placed = bets.covers("app", missed + 0.9 * tokens, Limit(0))
        if placed:
            bets.open("app", number, 1.15 * tokens, now_us + HALF_HOUR_US)
            open_[number] = (now_us + HALF_HOUR_US, 1.15 * tokens)
        change = missed - 0.25 * tokens * placed
        bets.enter(stake(1.25 * tokens, 1.25 * tokens + change))
        spent, lost = spent + 1.25 * tokens, lost + change
        assert lost + sum(cost for _, cost in open_.values()) <= SHARE * spent + 1e-6


def test_an_entry_is_put_right_by_what_was_counted() -> None:
    """Planned as read, but the provider had lost it and wrote it anew: it has cost 2,500 and not 300."""
    bets = Bets()
    planned = stake(habit=2_000, planned=300, tokens=2_000)
    bets.enter(planned)
    assert bets.covers("app", 1_700, NONE)
    bets.settle(planned, 2_000, 0, {"5m": 1_000, "unknown": 1_000})
    assert not bets.covers("app", 1, NONE)
    assert bets.covers("app", 500, Limit(1))  # a free one
    bets.enter(stake(habit=1, planned=501))
    assert not bets.covers("app", 1, Limit(1))


def test_what_went_as_by_habit_is_no_gain_and_no_loss() -> None:
    """However far off the expectation was: the provider counts in units of its own."""
    bets, plain = Bets(), stake(habit=1_000, planned=1_000)._replace(by_habit=True)
    for _ in range(10):
        bets.enter(plain)
        bets.settle(plain, 1_000, 0, {})
    assert bets.covers("app", SHARE * 10_000, NONE)
    assert not bets.covers("app", SHARE * 10_000 + 1, NONE)


def test_what_calls_have_shown_counts_but_not_for_ever() -> None:
    bets = Bets()
    for _ in range(100):
        bets.shown("app", -1_000, most=5_000)
    assert not bets.covers("app", 1, NONE)
    for _ in range(6):
        bets.shown("app", 1_000, most=5_000)
    assert bets.covers("app", 1_000, NONE)
    assert not bets.covers("app", 1_001, NONE)


def test_no_bet_is_free_where_calls_have_shown_that_bets_lose() -> None:
    bets = Bets()
    bets.shown("app", -500, most=5_000)
    assert not bets.covers("app", 400, Limit(1))
    assert bets.covers("app", 600, Limit(1))


def test_accounts_are_bounded_and_what_others_add_counts() -> None:
    one, other = Bets(most=2), Bets()
    one.fresh = {}
    for _ in range(3):
        one.enter(stake(habit=1_000, planned=100))
    other.take(one.fresh.items())
    assert other.covers("app", 2_700, NONE)
    assert not other.covers("app", 2_750, NONE)
    for name in ("b", "c"):
        one.covers(name, 1.0, NONE)
    assert not one.covers("app", 2_700, NONE)


def test_more_is_risked_once_much_is_known() -> None:
    bets, limit = Bets(), Limit(0, share_learnt=0.05, learnt_tokens=10_000)
    for tokens, covered in ((9_999, 50), (10_000, 500)):
        bets.enter(stake(tokens, tokens))
        assert bets.covers("app", covered - 1, limit) is True
        bets = Bets()
        bets.enter(stake(tokens, tokens))
        assert bets.covers("app", covered + 1, limit) is False
        assert bets.covers("app", covered + 1, limit._replace(free=1), free=False) is False


def test_a_free_bet_may_be_bounded_by_what_was_spent() -> None:
    """So that a file of two or three calls pays for none."""
    bets, limit = Bets(), Limit(1, free_share=0.1)
    assert not bets.covers("app", 100, limit)
    bets.enter(stake(habit=1_000, planned=1_000))
    assert not bets.covers("app", 101, limit)
    assert bets.covers("app", 100, limit)
    assert not bets.covers("app", 106, limit), "there was one"
