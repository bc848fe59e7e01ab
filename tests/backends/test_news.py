"""What one process sees of a lane, the others know; and what is one process's own trouble stays that."""
from __future__ import annotations

import time

import pytest

from gateway.backends.news import LaneNews
from gateway.backends.probe import LaneProbe
from gateway.settings_file import LaneSettings


class Fleet:
    def __init__(self) -> None:
        self.probes, self.looked = {"a/fast": LaneProbe(LaneSettings()), "a/slow": LaneProbe(LaneSettings())}, 0

    def stale(self) -> None:
        self.looked += 1


class Process:
    def __init__(self) -> None:
        self.fleet = Fleet()
        self.news = LaneNews(self.fleet)
        self.news.fresh = {}
        self.lane = self.fleet.probes["a/fast"]

    def why_not(self) -> str | None:
        return self.lane.why_not(time.monotonic())


def told(one: Process, other: Process) -> None:
    assert one.news.fresh is not None
    other.news.take(list(one.news.fresh.items()))
    one.news.fresh.clear()


@pytest.fixture
def two() -> tuple[Process, Process]:
    return Process(), Process()


def answer(process: Process) -> None:
    process.lane.answered(uncached_tokens=None, output_tokens=None, first_token_s=None, total_s=1.0)


def test_a_lane_that_fails_one_is_left_alone_by_all(two: tuple[Process, Process]) -> None:
    """Another lane is not; and as soon as it answers the first one, it is good for all."""
    one, other = two
    for _ in range(3):
        one.lane.failed("connection refused")
    told(one, other)
    now = time.monotonic()
    assert other.lane.admit(now)
    assert not other.lane.admit(now + 0.1)
    assert other.why_not() is not None
    assert "connection refused, as another process saw" in str(other.why_not())
    assert other.fleet.probes["a/slow"].admit(now)
    assert other.fleet.looked == 1
    answer(one)
    told(one, other)
    assert other.why_not() is None


def test_one_that_fails_alone_costs_the_others_a_moment(two: tuple[Process, Process]) -> None:
    """Their first answer closes their breakers, and does not talk the first one out of its own."""
    one, other = two
    for _ in range(3):
        one.lane.failed("no more file descriptors")
    told(one, other)
    answer(other)
    assert other.why_not() is None
    told(other, one)
    assert one.why_not() is not None
    assert one.news.fresh == other.news.fresh == {}


def test_a_lane_that_asks_to_wait_asks_all(two: tuple[Process, Process]) -> None:
    """For as long as it said, and no shorter than another asked already."""
    one, other = two
    one.lane.cool("answered 429", 20.0)
    told(one, other)
    assert 19.0 < other.lane.cooled_for_s(time.monotonic()) <= 20.0
    other.news.take([("a/fast", ("cools", time.time() + 5.0, "answered 429")), ("gone/lane", ("fails", 0.0, "x"))])
    assert other.lane.cooled_for_s(time.monotonic()) > 19.0
