from dataclasses import replace

import pytest

from router_policies.filters.priced import priced
from router_policies.presets import default_policy
from router_policies.types import Rates


@pytest.mark.parametrize("rates", [Rates(), Rates(uncached=1), Rates(output=1)])
def test_what_has_no_price_is_not_free(ask, lane, terms, rates):
    """Refused, unless the policy reckons with a ceiling."""
    ceiling = replace(default_policy(), unpriced="ceiling", ceiling_usd_per_mtok=50.0)
    assert "no price is known" in (priced(ask(), lane(rates=rates), terms()) or "")
    assert priced(ask(), lane(rates=rates), terms(policy=ceiling)) is None


def test_a_free_model_is_priced(ask, lane, terms):
    """A rate of 0 is a price; None is not."""
    assert priced(ask(), lane(rates=Rates(0, None, None, 0)), terms()) is None
