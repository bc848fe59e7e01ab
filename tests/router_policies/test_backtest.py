import pytest

from router_policies.backtest import parts, router, run
from router_policies.files import PolicySet
from router_policies.menus import menu
from router_policies.simulate import Recorded
from router_policies.tally import Tally


def calls(count=300):
    return [Recorded(0.3 * n, 2_000, 50, wished_class="batch" if n % 3 else "interactive") for n in range(count)]


def test_the_same_policies_and_seed_come_to_the_same():
    """A backtest can be repeated; another seed is other luck."""
    first, again, other = (run(router(PolicySet()), calls(), menu(), seed).sums() for seed in (1, 1, 2))
    assert (first.cost_usd, first.first_token) == (again.cost_usd, again.first_token)
    assert first.first_token != other.first_token


def test_calls_are_told_by_class_and_progress_is_told():
    """Classes as the policy gave them."""
    told = []
    tally = run(router(PolicySet()), (call for _ in range(20) for call in calls(300)[:300]), menu(), progress=told.append)
    assert tally.groups() == [("default", "batch"), ("default", "interactive")]
    assert told == [5_000]


def test_what_nobody_can_serve_is_counted():
    """A model that no lane has."""
    assert run(router(PolicySet()), [Recorded(0.0, 1, 1, model="other")], menu()).sums().refused == 1


def test_parts_of_a_trace_add_up_to_all_of_it():
    """Each call counts once, after an hour of others; where nothing is remembered from call to call, the sums are the whole's."""
    trace = [Recorded(10.0 * n, 2_000, 50, wished_class="batch" if n % 3 else "interactive") for n in range(4_500)]
    cut = parts([call.at_s for call in trace], 4)
    assert [(part.start, part.end) for part in cut] == [(0, 1_125), (1_125, 2_250), (2_250, 3_375), (3_375, 4_500)]
    assert [part.start - part.warm for part in cut] == [0, 360, 360, 360]
    total = Tally()
    for part in cut:
        total.plus(run(router(PolicySet()), trace[part.warm : part.end], menu()[:1], seed=3, part=part))
    whole = run(router(PolicySet()), trace, menu()[:1], seed=3)
    assert total.sums().calls == 4_500
    assert total.sums().cost_usd == pytest.approx(whole.sums().cost_usd)
    assert total.sums().first_token == whole.sums().first_token
    assert [total.sums(stretches=[n]).calls for n in range(64)] == [whole.sums(stretches=[n]).calls for n in range(64)]


def test_a_short_trace_is_not_cut():
    """A part has a thousand calls at least, however many are asked for; none at all is one part, too."""
    assert [len(parts([float(n) for n in range(count)], 8)) for count in (0, 1, 1_999, 2_000, 9_000)] == [1, 1, 1, 2, 8]
