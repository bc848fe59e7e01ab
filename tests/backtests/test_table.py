from gateway.backtests.table import compared, lines
from router_policies.rules import Klass
from router_policies.simulate import Outcome, Recorded
from router_policies.tally import Tally


def tally(usd: float) -> Tally:
    found, klass = Tally(), Klass(name="batch")
    for n in range(640):
        found.add(Recorded(float(n), 10, 5), Outcome("a/flex", klass, usd, 10, 0, 5, 1.0, 2.0, 0.0, n % 10 == 0, 0.0, 0.0), "batch")
    return found


def test_the_change_is_told_with_what_is_known_of_it():
    """By team and class too; a change that every call shows is certain."""
    result = compared([tally(0.02), tally(0.01)])
    cost = result["groups"][0]["cost_usd"]
    assert (round(cost["old"], 6), round(cost["new"], 6), round(cost["change"], 6)) == (12.8, 6.4, -6.4)
    assert cost["change_95"][1] < 0.0
    assert result["all"]["miss_share"]["change"] == 0.0
    assert result["all"]["new"]["lanes"] == {"a/flex": 640}


def test_a_line_for_each_figure():
    """With its relative change, and the deadlines as a share."""
    text = "\n".join(lines({**compared([tally(0.02), tally(0.01)]), "seconds": 1.0}, markdown=False))
    assert "(-50.0%)" in text
    assert "10.00%" in text
    assert "lanes, new: a/flex 640" in text
