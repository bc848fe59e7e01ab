"""When a failing lane is left alone, and how it comes back."""
from __future__ import annotations

from gateway.backends.breaker import Breaker


def fed(outcomes: str, at: float = 0.0, gap: float = 0.1) -> Breaker:
    """A breaker that saw answers (.) and failures (x), one every `gap` seconds."""
    breaker = Breaker()
    for n, outcome in enumerate(outcomes):
        (breaker.failed if outcome == "x" else breaker.answered)(at + n * gap)
    return breaker


def test_half_of_twenty_calls_open_it() -> None:
    """A share, not a count: a busy lane with a few failures goes on."""
    assert not fed("x.x.x.x.x.x.x.x.x.").is_open
    assert fed(".x" * 10).is_open
    assert not fed("xx.." * 4 + "...." + ".x." * 10).is_open
    assert fed("xxx").is_open


def test_what_is_long_ago_does_not_count() -> None:
    """Ten seconds are remembered."""
    breaker = fed("x." * 9)
    breaker.answered(60.0)
    breaker.failed(60.1)
    assert not breaker.is_open


def test_an_open_one_lets_one_call_a_second_through() -> None:
    """Which closes it if it is answered."""
    breaker = fed("xxx")
    opened = 0.2
    assert not breaker.admit(opened + 0.9)
    assert round(breaker.wait_s(opened + 0.4), 6) == 0.6
    assert [breaker.admit(opened + t) for t in (1.0, 1.01, 1.5, 2.0, 2.9, 3.1)] == [True, False, False, True, False, True]
    breaker.failed(opened + 3.2)
    assert breaker.is_open
    breaker.answered(opened + 4.2)
    assert not breaker.is_open
    assert all(breaker.admit(opened + 4.3) for _ in range(10))


def test_what_others_saw_opens_it_for_as_long_as_they_say_or_until_an_answer_comes() -> None:
    """One call may try at once: the fault may be theirs alone."""
    breaker = Breaker()
    breaker.heard(5.0, fails=True)
    assert [breaker.admit(at) for at in (5.0, 5.1, 6.1)] == [True, False, True]
    assert not breaker.answered(6.3)  # that is nothing to tell the others, whose failures it does not explain
    assert breaker.admit(6.4)
    breaker.heard(7.0, fails=True)
    breaker.heard(7.1, fails=False)
    assert not breaker.is_open


def test_nobody_talks_it_out_of_failures_of_its_own() -> None:
    """It says when it opens and when it closes, once each; hearsay that turns out true is its own."""
    breaker = Breaker()
    assert [breaker.failed(float(n)) for n in range(5)] == [False, False, True, False, False]
    breaker.heard(5.0, fails=False)
    assert breaker.is_open
    assert breaker.answered(6.0)
    breaker.heard(7.0, fails=True)
    assert [breaker.failed(7.0 + n) for n in range(4)] == [False, False, True, False]
    breaker.heard(12.0, fails=False)
    assert breaker.is_open
