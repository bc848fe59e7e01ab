from dataclasses import replace

import pytest

from router_policies.backtest import router
from router_policies.files import PolicySet
from router_policies.menus import menu, rates
from router_policies.presets import default_policy
from router_policies.rules import Klass
from router_policies.simulate import Cache, Choice, Reality, Recorded, World, alone_s, misses

LANE = Reality(key="a/standard", backend="a", name="standard", rates=rates(1.0), first_token_s=1.0, prefill_s_per_token=0.001,
               seconds_per_output_token=0.01, spread=0.0, cache_minimum=512)  # fmt: skip
KLASS = Klass(name="k")


def first(ask, lanes, forecast):
    up = [lane for lane in lanes if lane.healthy]
    return Choice(up[0] if up else None, KLASS)


def run(lanes, calls, route=first):
    return [one for _, one in World(lanes, 1).run(calls, route)]


def call(at_s, **given):
    return Recorded(**{"at_s": at_s, "prompt_tokens": 1_000, "output_tokens": 100, **given})


def test_a_call_alone_takes_what_the_lane_takes_and_costs_its_tokens():
    """First token by what must be computed, then the pace; dollars by class."""
    (one,) = run([LANE], [call(0.0)])
    assert (one.first_token_s, one.total_s) == (pytest.approx(2.0), pytest.approx(3.0))
    assert one.cost_usd == pytest.approx(1_000 * 2.5e-6 + 100 * 15e-6)


def test_slots_are_a_queue():
    """The third of three waits for the first of two to end, and nobody's figures are to blame."""
    served = run([replace(LANE, slots=2)], [call(0.0), call(0.0), call(0.0)])
    assert [one.queue_s for one in served] == [0.0, 0.0, pytest.approx(3.0)]
    assert served[2].first_token_s == pytest.approx(5.0)


def test_a_prefix_is_read_from_the_cache_of_its_pool_until_it_ends():
    """Whole blocks, only what is shared, not before the minimum, and not after its time."""
    calls = [call(0.0, blocks=(1, 2)), call(10.0, blocks=(1, 3)), call(2_000.0, blocks=(1, 3)), call(2_001.0, blocks=(9,))]
    served = run([LANE], calls)
    assert [one.cached for one in served] == [0, 512, 0, 0]
    assert served[1].cost_usd == pytest.approx(488 * 2.5e-6 + 512 * 0.25e-6 + 100 * 15e-6)
    assert [one.cached for one in run([replace(LANE, cache_minimum=513)], calls[:2])] == [0, 0]


def test_a_full_cache_forgets_the_longest_unused():
    """And never the beginning of what it still holds."""
    cache = Cache(600.0, 3 * 512)
    for at, blocks in enumerate([(1, 2), (3,), (1, 2), (4,)]):
        cache.use(call(float(at), blocks=blocks), float(at))
    assert [cache.tokens(call(9.0, blocks=blocks), 9.0) for blocks in [(1, 2), (3,), (4,)]] == [1_000, 0, 512]


def test_outages_slow_times_and_prices_come_when_they_come():
    """A lane that is down is refused, one that is slow is slow, a price holds from its day on."""
    lane = replace(LANE, outages=((10.0, 20.0),), paces=((30.0, 2.0),), prices=((40.0, rates(3.0)),))
    served = run([lane], [call(0.0), call(15.0), call(25.0), call(35.0), call(45.0)])
    assert served[1] is None
    assert [one.total_s for one in served if one] == [pytest.approx(3.0), pytest.approx(3.0), pytest.approx(6.0), pytest.approx(6.0)]
    assert served[4].cost_usd == pytest.approx(3 * served[0].cost_usd)


def test_the_luck_is_the_calls_own():
    """Another lane, the same luck: so the difference of two policies is theirs."""
    lanes = [replace(LANE, spread=0.5), replace(LANE, key="b/standard", backend="b", spread=0.5)]
    calls = [call(float(n * 100)) for n in range(50)]
    last = lambda ask, lanes, forecast: Choice(lanes[-1], KLASS)  # noqa: E731
    assert [one.total_s for one in run(lanes, calls)] == [one.total_s for one in run(lanes, calls, last)]
    assert len({alone_s(lanes[0], 10, 10, 0.1 * n, 0.0)[0] for n in range(9)}) == 9


@pytest.mark.parametrize(("klass", "late"), [
    (Klass(name="k", first_token_deadline_ms=900), True), (Klass(name="k", first_token_deadline_ms=1_100), False),
    (Klass(name="k", total_deadline_ms=1_900), True), (Klass(name="k"), False),
])
def test_a_deadline_is_missed_or_not(klass, late):
    """Either one."""
    assert misses(klass, 1.0, 2.0) is late


def test_the_gateways_own_learning_finds_out_what_a_lane_is_like():
    """A lane that is ten times as slow as its settings say is left after a few calls, though it is cheaper."""
    slow = replace(LANE, key="slow/standard", backend="slow", rates=rates(0.9), seconds_per_output_token=0.1)
    slow = replace(slow, prior=World([LANE])._lanes[0].figures.prior)
    policy = replace(default_policy(), classes={"standard": Klass(name="standard", value_usd_per_hour=20.0)})
    served = run([slow, LANE], [call(20.0 * n) for n in range(60)], router(PolicySet(default=policy)))
    assert [one.lane for one in served[-20:]].count("a/standard") >= 18
    assert "slow/standard" in {one.lane for one in served[:3]}


def test_a_router_that_prices_time_and_money_beats_one_tier():
    """The whole thing, small: batch on flex, and no more deadlines missed."""
    calls = [call(0.5 * n, wished_class="batch" if n % 2 else "interactive") for n in range(400)]
    broker = run(menu(), calls, router(PolicySet()))
    assert {one.lane for one in broker if one.klass.name == "batch"} == {"provider/flex"}
    assert {one.lane for one in broker if one.klass.name == "interactive"} <= {"provider/priority", "own/standard", "provider/standard"}


def test_a_hot_prefix_spreads_over_replicas_and_nobody_waits():
    """Half of all calls share one prompt: its replicas are several, all of them warm, and each has slots to spare."""
    pool = [replace(LANE, key=f"r{n}/standard", backend=f"r{n}", slots=4, spread=0.1, prefill_s_per_token=2e-4) for n in range(8)]
    prefixes = [(n % 2 * (1 + n // 2 % 40),) * 1 for n in range(1_200)]
    calls = [call(0.1 * n, prompt_tokens=4_200, blocks=tuple(prefix * 100 + i for i in range(8)), session=str(prefix), wished_class="agent")
             for n, (prefix,) in enumerate(prefixes)]  # fmt: skip
    later = [(one, prefix) for one, (prefix,) in zip(run(pool, calls, router(PolicySet())), prefixes, strict=True)][300:]
    assert max(one.queue_s for one, _ in later) == 0.0
    assert len({one.lane for one, prefix in later if prefix == 0}) >= 3
    assert sum(one.cached > 0 for one, _ in later) / len(later) > 0.95
