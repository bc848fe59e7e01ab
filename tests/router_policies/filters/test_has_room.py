import pytest

from router_policies.filters.has_room import has_room


@pytest.mark.parametrize(("in_flight", "most", "says"), [(3, None, None), (3, 4, None), (4, 4, "full: 4 of 4 in flight")])
def test_a_full_lane_takes_no_more(ask, lane, terms, in_flight, most, says):
    """The in-flight limit is a limit, not a score."""
    assert has_room(ask(), lane(in_flight=in_flight, max_in_flight=most), terms()) == says
