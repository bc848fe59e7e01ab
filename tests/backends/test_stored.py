from __future__ import annotations

import pytest

from gateway.backends.stored import Stored
from gateway.core.errors import NotFound


def test_only_the_team_that_stored_it_finds_it() -> None:
    """Another team is told that there is nothing; what nobody remembers is left to the provider."""
    stored = Stored()
    stored.keep("resp_1", "search", "openai")
    assert stored.backend("resp_1", "search") == "openai"
    assert stored.backend("resp_2", "search") is None
    with pytest.raises(NotFound) as caught:
        stored.backend("resp_1", "other", param="previous_response_id")
    assert caught.value.param == "previous_response_id"


def test_the_oldest_is_forgotten_first() -> None:
    """Memory is bounded; what is stored again is young again."""
    stored = Stored(most=2)
    for name in ("a", "b", "a", "c"):
        stored.keep(name, "t", "x")
    assert [stored.backend(name, "t") for name in "abc"] == ["x", None, "x"]
