"""One writes, the others wait, nobody for ever."""
from __future__ import annotations

import asyncio

from gateway.planner.cohorts import Cohorts

KEY, OTHER = 1, 2


async def test_followers_go_on_when_the_leader_begins() -> None:
    cohorts = Cohorts()
    leader = cohorts.lead([KEY])
    found = cohorts.writer(KEY)
    assert found is leader
    asyncio.get_running_loop().call_soon(cohorts.begun, leader)
    assert await found.wait(30) == "begun"


async def test_followers_of_a_leader_that_fails_hear_of_it() -> None:
    cohorts = Cohorts()
    leader = cohorts.lead([KEY])
    asyncio.get_running_loop().call_soon(cohorts.end, leader)
    assert await leader.wait(30) == "gone"
    assert cohorts.writer(KEY) is None
    assert len(cohorts) == 0


async def test_who_has_begun_is_waited_for_no_more() -> None:
    """And its end, which comes later, changes nothing."""
    cohorts = Cohorts()
    leader = cohorts.lead([KEY])
    cohorts.begun(leader)
    assert cohorts.writer(KEY) is None
    after = cohorts.lead([KEY])
    cohorts.end(leader)
    assert cohorts.writer(KEY) is after
    assert await leader.wait(30) == "begun"


async def test_no_wait_is_longer_than_its_bound() -> None:
    assert await Cohorts().lead([KEY]).wait(0.01) == "late"


async def test_who_comes_second_leads_only_for_what_is_left() -> None:
    cohorts = Cohorts()
    first, second = cohorts.lead([KEY]), cohorts.lead([KEY, OTHER])
    assert (cohorts.writer(KEY), cohorts.writer(OTHER)) == (first, second)
    cohorts.end(second)
    assert (cohorts.writer(KEY), cohorts.writer(OTHER)) == (first, None)
