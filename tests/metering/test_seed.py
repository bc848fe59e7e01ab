"""prices.toml is what the seeding script makes of genai-prices and our overlay."""
from __future__ import annotations

import re
from datetime import date

import pytest

pytest.importorskip("genai_prices", reason="the price seed needs the package genai-prices (extra `prices`)")

from genai_prices.data import providers

from gateway.metering import seed
from gateway.metering.prices import BUILT_IN
from gateway.metering.rows import read


def text() -> str:
    kept = [row for section in read(BUILT_IN[1]).values() for row in section.rows]
    return seed.render(providers, {row.id for row in kept} | {f"{row.provider}/{row.model}@launch#hours" for row in kept if row.hours})


def dateless(found: str) -> str:
    return re.sub(r"checked_on = \S+", "", found)


def test_the_shipped_file_is_reproducible() -> None:
    """With the version it names; a newer package is a diff to look at, not a failure."""
    shipped, fresh = BUILT_IN[0].read_text(), text()
    if shipped.partition("(MIT")[0] != fresh.partition("(MIT")[0]:
        pytest.skip("another version of genai-prices is installed")
    assert dateless(shipped) == dateless(fresh)


def test_rows_are_dated_by_the_day_they_were_taken() -> None:
    """Every row says where it comes from and when it was looked at."""
    for section in read(BUILT_IN[0]).values():
        assert all(row.source and isinstance(row.checked_on, date) for row in section.rows)


def test_no_name_is_left_to_a_prefix() -> None:
    """Only customers' fine-tuned models are patterns."""
    patterns = [row.model for section in read(BUILT_IN[0]).values() for row in section.rows if "*" in row.model]
    assert patterns
    assert all(name.startswith("ft:") or ".ft-" in name for name in patterns)
