from dataclasses import replace

import pytest

from router_policies.filters.priced import priced
from router_policies.presets import default_policy
from router_policies.types import Rates


@pytest.mark.parametrize("rates", [Rates(), Rates(uncached=1), Rates(output=1)])
def test_what_has_no_price_is_not_free(ask, lane, terms, rates):
    """A policy that refuses it says so; one with a ceiling reckons with that, one that allows it books it as unknown."""
    says = {
        word: priced(ask(), lane(rates=rates), terms(policy=replace(default_policy(), unpriced=word, ceiling_usd_per_mtok=50.0)))
        for word in ("refuse", "ceiling", "allow")
    }
    assert "no price is known" in (says["refuse"] or "")
    assert (says["ceiling"], says["allow"]) == (None, None)


def test_a_free_model_is_priced(ask, lane, terms):
    """A rate of 0 is a price; None is not."""
    assert priced(ask(), lane(rates=Rates(0, None, None, 0)), terms()) is None
