from gateway.lanes.traffic import Traffic


def test_draws_fill_the_range_evenly():
    """Among any twenty calls in a row, one or two are below a twentieth and a share of 0.25 has its fifth."""
    traffic = Traffic()
    draws = [traffic.draw() for _ in range(2_000)]
    assert all(1 <= sum(draw < 0.1 for draw in draws[i : i + 20]) <= 4 for i in range(0, 1_980, 7))
    assert all(0.0 <= draw < 1.0 for draw in draws)


def test_siblings_are_the_other_calls_of_the_run():
    """Calls without a run have none, and a run that ended is forgotten."""
    traffic = Traffic()
    traffic.began("r")
    assert traffic.siblings("r") == 0
    traffic.began("r")
    assert (traffic.siblings("r"), traffic.siblings("x"), traffic.siblings(None)) == (1, 0, 0)
    traffic.ended("r")
    traffic.ended("r")
    assert traffic.siblings("r") == 0


def test_answers_teach_their_routes_length():
    """An answer without a count teaches nothing."""
    traffic = Traffic()
    traffic.answered("t", "m", "c", None)
    prior = traffic.forecast("t", "m", "c").tokens
    traffic.answered("t", "m", "c", 10)
    assert traffic.forecast("t", "m", "c").tokens < prior
