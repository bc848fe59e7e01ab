import pytest

from router_policies.filters.context_fits import context_fits


@pytest.mark.parametrize(("prompt", "window", "fits"), [
    (1_000, 8_192, True),
    (13_000, 8_192, True),  # within the estimate's error: the backend counts exactly
    (14_000, 8_192, False),
    (10**9, None, True),
])
def test_what_is_surely_too_long_is_refused(ask, lane, terms, prompt, window, fits):
    """An estimate refuses only what it is sure of."""
    says = context_fits(ask(prompt_tokens=prompt), lane(window=window), terms())
    assert (says is None) == fits
