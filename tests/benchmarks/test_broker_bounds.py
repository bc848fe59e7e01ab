from dataclasses import replace

import pytest

from benchmarks.broker_bounds import bound
from router_policies.menus import rates
from router_policies.presets import default_policy
from router_policies.simulate import Reality, Recorded

OWN = Reality(key="own/standard", backend="own", name="standard", rates=rates(0.5), first_token_s=1.0, prefill_s_per_token=0.0,
              seconds_per_output_token=0.09, spread=0.0, slots=1)  # fmt: skip
TIER = replace(OWN, key="tier/standard", backend="tier", rates=rates(1.0), slots=None)
USD = 1_000 * 2.5e-6 + 100 * 15e-6  # of one call at the tier; in a slot it takes 10 s


def calls(*at_s):
    return [Recorded(at, 1_000, 100, wished_class="batch") for at in at_s]


def usd(*at_s, lanes=(OWN, TIER), **given):
    return bound(default_policy(), calls(*at_s), lanes, 0, 1, luck=False, **given) / USD


def test_a_slot_serves_one_call_a_time():
    """Ten calls in 100 s fit; of twenty, ten go to the dearer lane."""
    assert usd(*range(0, 100, 10), 100) == pytest.approx(5.5, abs=0.6)
    assert usd(*[n * 5.0 for n in range(20)], 100) == pytest.approx(5.0 + 11.0, abs=0.6)


def test_no_call_has_a_slot_before_it_comes():
    """Half of the time the pool is idle, and no use of it can be made afterwards."""
    assert usd(0.0, *[50.0 + n * 2.5 for n in range(20)], 100) == pytest.approx(22 - 0.5 * 6, abs=0.6)


def test_caches_as_they_were_are_taken_for_granted():
    """What was held is read at a tenth, and nothing else is."""
    held = [{}, {"tier/standard": 1_024}, {"tier/standard": 1_024}]
    one = [Recorded(at, 1_024, 1, wished_class="batch") for at in (0.0, 1.0, 2.0)]
    found = bound(default_policy(), one, [TIER], 0, 1, luck=False, held=held)
    assert found == pytest.approx(1_024 * 2.5e-6 * 1.2 + 3 * 15e-6)
