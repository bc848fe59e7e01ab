from router_policies.backtest import router, run
from router_policies.files import PolicySet
from router_policies.menus import menu
from router_policies.simulate import Recorded


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
