import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router_policies.globs import globs
from router_policies.live import Forecast, Rent
from router_policies.policy import decide, resolve_model, visible_models
from router_policies.presets import default_policy
from router_policies.rules import ClientMay, Klass, ModelRules
from router_policies.types import Ask, Lane, Rates, Served

OPEN = replace(default_policy(), classes={
    "standard": Klass(name="standard", value_usd_per_hour=3.6, lanes=globs(["standard", "fast", "*"])),
    "now": Klass(name="now", value_usd_per_hour=360.0),
})
CHEAP, DEAR = Rates(1_000_000, 100_000, 1_000_000, 1_000_000), Rates(10_000_000, 1_000_000, 10_000_000, 10_000_000)


def test_the_least_sum_of_cost_and_wait_wins(ask, lane):
    """What a second is worth turns the choice around, and the figures say so."""
    lanes = [lane("standard", rates=CHEAP, seconds_per_output_token=0.1), lane("fast", rates=DEAR, seconds_per_output_token=0.01)]
    calm, urgent = decide(OPEN, ask(), lanes), decide(OPEN, ask(wished_class="now"), lanes)
    assert [one.lane.name for one in calm.ranked] == ["standard", "fast"]
    assert [one.lane.name for one in urgent.ranked] == ["fast", "standard"]
    best = urgent.ranked[0]
    assert best.score_usd == pytest.approx(best.expected_cost_usd + 0.1 * best.expected_wait_s)
    assert urgent.reason == "class now (client's word); b/fast is least of cost + wait: 0.011 + 0.12 USD against 1.02 for b/standard"


def test_a_warm_cache_is_part_of_the_sum(ask, lane):
    """Leaving a warm lane costs the lost cache."""
    lanes = [lane(backend="a", rates=CHEAP), lane(backend="b", rates=CHEAP)]
    assert decide(OPEN, ask(cached={"b/standard": 900}), lanes).ranked[0].lane.backend == "b"


@pytest.mark.parametrize(("first", "second", "why"), [
    pytest.param({"name": "fast"}, {"name": "standard"}, "second", id="the class's order of preference"),
    pytest.param({"samples": 3}, {"backend": "c", "samples": 90}, "second", id="then who is best known"),
    pytest.param({"backend": "c"}, {"backend": "a"}, "second", id="then the name, so that it is the same everywhere"),
])
def test_ties_are_settled_in_a_stated_order(ask, lane, first, second, why):
    """Equal to the nano-dollar is equal."""
    lanes = [lane(**first), lane(**second)]
    decision = decide(OPEN, ask(), lanes)
    assert decision.ranked[0].lane is lanes[1]
    assert "preferred at an equal sum" in decision.reason


def test_a_lane_that_likely_misses_a_deadline_is_ranked_last(ask, lane):
    """Whatever it costs; but it is still there when nothing else is."""
    lanes = [lane("standard", rates=CHEAP, queue_s=8.0), lane("fast", rates=DEAR)]
    assert decide(OPEN, ask(), lanes).ranked[0].lane.name == "standard"
    late = decide(OPEN, ask(deadline_ms=6_000), lanes)
    assert [one.lane.name for one in late.ranked] == ["fast", "standard"]
    assert late.ranked[1].note.startswith("ranked last: misses its deadline with a chance of")
    assert "which is ranked last" in late.reason
    assert (late.deadline_ms, decide(OPEN, ask(deadline_ms=6_000), lanes[:1]).ranked[0].lane.name) == (6_000, "standard")


def test_the_clients_deadline_counts_only_if_the_policy_lets_it(ask, lane):
    """The class's own always does."""
    strict = replace(OPEN, client_may=ClientMay(set_deadline=False), classes={"standard": Klass(name="standard", total_deadline_ms=9_000)})
    assert decide(strict, ask(deadline_ms=5), [lane()]).deadline_ms == 9_000
    assert decide(replace(strict, client_may=ClientMay()), ask(deadline_ms=5), [lane()]).deadline_ms == 5


def test_every_lane_is_ranked_or_refused_with_a_reason(ask, lane):
    """Nothing is left out without a word."""
    lanes = [lane(), lane("fast", healthy=False, why_not="cooling"), lane("x", models={}), lane("y", in_flight=1, max_in_flight=1), lane("z", rates=Rates())]
    decision = decide(replace(OPEN, unpriced="refuse"), ask(), lanes)
    assert {one.lane.name for one in decision.ranked} == {"standard"}
    assert {no.lane.name: no.reason.split()[0] for no in decision.refused} == {"fast": "not", "x": "does", "y": "full:", "z": "no"}
    assert "is the only lane that can serve m" in decision.reason
    nobody = decide(replace(OPEN, unpriced="refuse"), ask(), lanes[1:])
    assert (nobody.ranked, nobody.denied) == ((), None)
    assert "no lane can serve: b/fast: not healthy: cooling; b/x: does not serve m" in nobody.reason
    assert "none is there" in decide(OPEN, ask(), []).reason


MODELS = ModelRules(allow=globs(["m*"]), deny=globs(["m-no"]), aliases={"small": "m"}, fallbacks={"m": ("m-2", "m-no", "m-3")})


def test_models_are_resolved_and_refused(ask, lane):
    """An alias is what it stands for; what is not allowed is an error, never a silent swap."""
    policy = replace(OPEN, models=MODELS)
    assert resolve_model(policy, "small") == ("m", None)
    assert decide(policy, ask(model="small"), [lane()]).model == "m"
    denied = decide(policy, ask(model="m-no"), [lane()])
    assert (denied.ranked, denied.denied, denied.reason) == ((), "model m-no is denied by `m-no`", "model m-no is denied by `m-no`")
    assert visible_models(policy, ["m", "m-no", "other"]) == ["m", "small"]


def test_fallbacks_stand_behind_the_model_itself(ask, lane):
    """In the author's order, never to a model that is denied, each with the name to ask for."""
    served = {name: Served(f"up-{name}", 8_192, CHEAP) for name in ("m", "m-2", "m-no", "m-3")}
    lanes = [lane(backend="a", models={"m-3": served["m-3"]}), lane(backend="b", models=served), lane(backend="c", models={})]
    decision = decide(replace(OPEN, models=MODELS), ask(), lanes)
    assert [(one.lane.backend, one.upstream_model) for one in decision.ranked] == [("b", "up-m"), ("b", "up-m-2"), ("a", "up-m-3"), ("b", "up-m-3")]
    assert decision.ranked[1].note == "fallback to m-2"
    assert [no.lane.backend for no in decision.refused] == ["c"]


def test_the_reason_is_one_line_of_ascii(ask, lane):
    """It goes into a header, and the model's name is the client's text."""
    decision = decide(replace(OPEN, models=ModelRules(allow=())), ask(model="m\r\nset-cookie: x\u202e"), [lane()])
    assert decision.reason.isascii()
    assert decision.reason.isprintable()
    assert len(decide(OPEN, ask(), [lane(backend="b" * 5_000, healthy=False)]).reason) <= 1_000


@pytest.mark.parametrize("figure", [math.inf, math.nan])
def test_a_figure_that_is_no_number_ends_up_last(ask, lane, figure):
    """A probe's slip must not stop calls, or win them."""
    lanes = [lane(backend="a", queue_s=figure), lane(backend="b")]
    assert [one.lane.backend for one in decide(OPEN, ask(), lanes).ranked] == ["b", "a"]


@given(
    seeds=st.lists(st.tuples(st.sampled_from(["fast", "standard", "flex"]), st.floats(0, 100), st.floats(0, 1), st.booleans()), max_size=8),
    deadline=st.none() | st.floats(0, 1e6), prompt=st.integers(0, 20_000), cached=st.integers(0, 20_000),
)
@settings(max_examples=150, deadline=None)
def test_it_is_a_function_of_what_it_is_given(seeds, deadline, prompt, cached):
    """Same ask, same lanes in any order: same ranking, each lane once."""
    lanes = [
        Lane(key=f"b{i}/{name}", backend=f"b{i}", name=name, models={"m": Served("m", 8_192, CHEAP)}, queue_s=queue, seconds_per_output_token=pace, healthy=up)
        for i, (name, queue, pace, up) in enumerate(seeds)
    ]
    ask = Ask(team="t", model="m", prompt_tokens=prompt, deadline_ms=deadline, cached={lanes[0].key: cached} if lanes else {})
    forth, back = decide(OPEN, ask, lanes), decide(OPEN, ask, lanes[::-1])
    assert (forth.ranked, forth.reason if forth.ranked else "") == (back.ranked, back.reason if back.ranked else "")
    assert sorted([one.lane.key for one in forth.ranked] + [no.lane.key for no in forth.refused]) == sorted(lane.key for lane in lanes)
    late = [one.miss_chance > 0.05 for one in forth.ranked]
    assert late == sorted(late)
    assert all(one.score_usd <= two.score_usd * 1.0101 or one.miss_chance <= 0.05 < two.miss_chance for one, two in pairwise(forth.ranked))


# what is tried, and what is bounded


def test_a_stale_lane_is_tried_only_where_it_could_win_and_no_deadline_is_at_risk(ask, lane):
    """A seeded share of calls; a lane that costs more than the best sum cannot win, however quick it is."""
    lanes = [lane(backend="a", samples=90), lane(backend="b", samples=90, unseen=80, queue_s=3.0), lane("fast", backend="c", rates=DEAR)]
    first = lambda **given: decide(OPEN, ask(**given), lanes).ranked[0].lane.key  # noqa: E731
    assert (first(), first(draw=0.2), first(draw=0.01)) == ("a/standard", "a/standard", "b/standard")
    assert first(draw=0.01, deadline_ms=4_000) == "a/standard"
    assert "tried because its figures are stale" in decide(OPEN, ask(draw=0.01), lanes).reason
    assert decide(replace(OPEN, explore=0.0), ask(draw=0.0), lanes).ranked[0].lane.key == "a/standard"


def test_a_lane_that_nobody_knows_is_tried_soon(ask, lane):
    """Else all lanes look alike, and the first wins for ever; but never where there is a deadline."""
    lanes = [lane(backend="a", samples=9), lane(backend="b", queue_s=1.0)]
    assert decide(OPEN, ask(draw=0.2), lanes).ranked[0].lane.backend == "b"
    assert decide(OPEN, ask(draw=0.2, deadline_ms=60_000), lanes).ranked[0].lane.backend == "a"


def test_sessions_spread_over_equal_lanes_and_stay(ask, lane):
    """Equal sums: each conversation has a lane of its own, and a lane that joins takes only its share."""
    lanes = [lane(backend=name, samples=40) for name in "abcd"]
    home = {n: decide(OPEN, ask(session=f"s{n}"), lanes).ranked[0].lane.backend for n in range(200)}
    counts = [list(home.values()).count(name) for name in "abcd"]
    assert min(counts) > 25
    more = [*lanes, lane(backend="e", samples=40)]
    moved = [n for n in home if decide(OPEN, ask(session=f"s{n}"), more).ranked[0].lane.backend != home[n]]
    assert {decide(OPEN, ask(session=f"s{n}"), more).ranked[0].lane.backend for n in moved} == {"e"}
    assert 10 < len(moved) < 80


def test_a_warm_lane_with_more_than_its_share_steps_back(ask, lane):
    """No hot spot, though its cache holds the prompt."""
    lanes = [lane(backend="a", slots=2, in_flight=9), lane(backend="b", slots=2, in_flight=1), lane(backend="c", slots=2)]
    decision = decide(OPEN, ask(cached={"a/standard": 990}), lanes)
    assert [one.lane.backend for one in decision.ranked] == ["b", "c", "a"]
    assert decision.ranked[-1].note == "has more than its share of the calls"
    calm = [replace(one, in_flight=min(one.in_flight, 1)) for one in lanes]
    assert decide(OPEN, ask(cached={"a/standard": 990}), calm).ranked[0].lane.backend == "a"


def test_a_crowded_pool_goes_to_those_who_gain_most_by_a_second_of_it(ask, lane):
    """Both calls save dollars there; the one that is in a slot for longer leaves it to others. An idle pool takes both."""
    pool = lane(backend="own", slots=4, rates=CHEAP, prefill_s_per_token=1e-4, seconds_per_output_token=0.02)
    crowded = replace(pool, in_flight=8, rent=Rent(600.0, 60.0), backlog_s=1e-9)
    tier = lane(backend="tier", rates=Rates(2_000_000, 200_000, 2_500_000, 8_000_000))
    reads, talks = (ask(prompt_tokens=tokens, max_output_tokens=output) for tokens, output in ((4_400, 10), (400, 1_000)))
    first = lambda each, own: decide(OPEN, each, [own, tier], forecast=lambda *_: Forecast(2_000.0)).ranked[0]  # noqa: E731
    assert [first(each, pool).lane.backend for each in (reads, talks)] == ["own", "own"]
    assert [first(each, crowded).lane.backend for each in (reads, talks)] == ["own", "tier"]
    won = first(reads, crowded)
    assert won.rent_usd > 0.0
    assert won.score_usd == pytest.approx(won.expected_cost_usd + won.rent_usd + 0.001 * won.expected_wait_s)


def test_of_replicas_that_are_equally_warm_the_idler_one_is_taken(ask, lane):
    """A hot prefix does not fill one after the other to the brim, though their figures differ by a little."""
    warm = {f"{name}/standard": 512 for name in "abc"}
    lanes = [lane(backend=name, slots=4, samples=40, in_flight=busy, queue_s=0.01 * busy) for name, busy in zip("abcd", (3, 1, 2, 0), strict=True)]
    ranked = decide(OPEN, ask(cached=warm, session="s"), lanes).ranked
    assert [one.lane.backend for one in ranked] == ["b", "c", "a", "d"]


def test_steps_beside_others_of_the_same_run_are_worth_less(ask, lane):
    """Only one of them is the one that is waited for."""
    lanes = [lane("standard", rates=CHEAP, seconds_per_output_token=0.1), lane("fast", rates=DEAR, seconds_per_output_token=0.01)]
    assert decide(OPEN, ask(wished_class="now"), lanes).ranked[0].lane.name == "fast"
    assert decide(OPEN, ask(wished_class="now", siblings=200), lanes).ranked[0].lane.name == "standard"


def test_the_answers_length_is_the_routes(ask, lane):
    """A route that talks much pays for the lane's pace."""
    lanes = [lane("standard", rates=CHEAP, seconds_per_output_token=0.1), lane("fast", rates=DEAR, queue_s=2.0, seconds_per_output_token=0.01)]
    short, long = (
        decide(OPEN, ask(wished_class="now", max_output_tokens=None), lanes, forecast=lambda *_, n=n: Forecast(n)).ranked[0].lane.name
        for n in (5.0, 500.0)
    )
    assert (short, long) == ("standard", "fast")


def test_prices_that_change_are_seen_at_once(ask, lane):
    """What is kept of a lane stands as long as its price list does."""
    policy, dear = replace(OPEN), [lane(backend="a", rates=DEAR), lane(backend="b", rates=CHEAP)]
    assert decide(policy, ask(), dear).ranked[0].lane.backend == "b"
    assert decide(policy, ask(), [lane(backend="a", rates=CHEAP), lane(backend="b", rates=DEAR)]).ranked[0].lane.backend == "a"
