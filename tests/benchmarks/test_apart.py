"""The test that tells whether two teams' times can be told apart."""
from __future__ import annotations

import math
import random

import pytest

from benchmarks.contract.apart import LEAST_P, SURE_P, ks


def test_what_is_the_same_is_not_told_apart() -> None:
    """p is even between 0 and 1 where there is nothing to see."""
    luck = random.Random(1)
    found = [ks([luck.random() for _ in range(200)], [luck.random() for _ in range(200)]) for _ in range(200)]
    assert sum(p <= LEAST_P for p in found) <= 8
    assert 0.3 < sum(found) / len(found) < 0.75


def test_what_is_another_is_told() -> None:
    luck = random.Random(2)
    one, other = ([luck.gauss(mean, 1.0) for _ in range(300)] for mean in (0.0, 1.0))
    assert ks(one, other) < SURE_P
    assert ks(one, one) == 1.0
    assert ks([1.0] * 50, [1.0] * 50) == 1.0


def test_it_is_the_known_statistic() -> None:
    """By hand: the distance of these is 0.5, and of the series only the first term counts."""
    assert ks([1, 2, 3, 4] * 25, [3, 4, 5, 6] * 25) == pytest.approx(2 * math.exp(-2 * (0.5 * (7.0711 + 0.12 + 0.0156)) ** 2), rel=1e-3)
