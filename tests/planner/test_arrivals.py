"""What earlier days say of whether a beginning is worth writing ahead of a time, and for how long."""
from __future__ import annotations

import pytest

from gateway.planner.arrivals import Arrivals, Offer
from gateway.planner.values import Beginning, Life

DAY, S = 86_400_000_000, 1_000_000
SHORT, LONG = Life("5m", 300.0, 1.25), Life("1h", 3_600.0, 2.0)
BEGINNING = Beginning(1, 10_000, 1, (SHORT, LONG), 1.15)


def known(days: dict[int, list[float]], value: float = 0.0) -> Arrivals:
    """Seconds after the time at which conversations began, day by day; the time is at each day's beginning."""
    made = Arrivals()
    for day, came in days.items():
        made.expect(1, day * DAY)
        for after_s in came:
            made.came(1, day * DAY, day * DAY + int(after_s * S), value)
    return made


@pytest.mark.parametrize(("days", "together", "value", "life", "gain"), [
    pytest.param({}, False, 0.0, None, 0.0, id="nothing is known"),
    pytest.param({1: [5.0]}, False, 0.0, None, 0.0, id="one call a day writes in any case"),
    pytest.param({1: [5.0] * 4}, False, 0.0, SHORT, 4 * 1.15 / 2 - 1.25, id="four that write, seen once, may not come again"),
    pytest.param({1: [5.0] * 4}, True, 0.0, None, 0.0, id="three of them wait, which costs nothing"),
    pytest.param({1: [5.0] * 4}, True, 0.5, SHORT, (1.15 + 4 * 2.0 * 0.5) / 2 - 1.25, id="which is worth something"),
    pytest.param({1: [5.0] * 4, 2: [5.0] * 4, 3: []}, False, 0.0, SHORT, 8 * 1.15 / 4 - 1.25, id="a day on which nobody came counts"),
    pytest.param({1: [5.0], 2: [5.0, 6.9, 7.1]}, False, 0.0, None, 0.0, id="who comes when it can be read would not write"),
    pytest.param({1: [1_200.0] * 6}, False, 0.0, LONG, 6 * 1.15 / 2 - 2.0, id="late ones find it if it lives for an hour"),
    pytest.param({1: [241.0] * 9}, False, 0.0, LONG, 9 * 1.15 / 2 - 2.0, id="it is written a minute before its time"),
    pytest.param({1: [-61.0] * 9}, False, 0.0, None, 0.0, id="who came before that writes it"),
])  # fmt: skip
def test_what_it_gains(days: dict[int, list[float]], together: bool, value: float, life: Life | None, gain: float) -> None:
    found = known(days, value).worth(1, 9 * DAY, Offer(BEGINNING, 2.0, together))
    assert (None if life is None else (life, pytest.approx(gain))) == found


def test_the_day_to_come_is_not_counted_before_it_has_come() -> None:
    one = known({1: [5.0] * 4, 2: []})
    assert one.worth(1, 2 * DAY, Offer(BEGINNING, 2.0, together=False)) == (SHORT, pytest.approx(4 * 1.15 / 2 - 1.25))


def test_processes_count_together() -> None:
    one, other = Arrivals(), Arrivals()
    one.fresh, other.fresh = {}, {}
    for process in (one, other):
        process.came(1, DAY, DAY + 5 * S, 0.0)
        process.came(1, DAY, DAY + 5 * S, 0.0)
    one.take(list(other.fresh.items()))
    assert one.worth(1, 2 * DAY, Offer(BEGINNING, 2.0, together=False)) == (SHORT, pytest.approx(4 * 1.15 / 2 - 1.25))
    assert other.worth(1, 2 * DAY, Offer(BEGINNING, 2.0, together=False)) is None


def test_memory_is_bounded() -> None:
    one = Arrivals(most=3)
    for name in range(9):
        for day in range(30):
            for _ in range(600):
                one._note(name, day * DAY, day * DAY, 0.0)
    assert len(one._days) == 3
    assert [(len(days), max(len(came) for came in days.values())) for days in one._days.values()] == [(14, 500)] * 3
