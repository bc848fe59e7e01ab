"""What was drawn ahead lasts over outages that follow one another, and the store holds no less than is counted on."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from gateway.budgets import Account, BudgetRule, Hold, Payer, StoreAway
from gateway.budgets.leases import Leases
from gateway.budgets.scripts import texts
from tests.budgets.test_memory import account
from tests.redis_server import Server

LONG_US = 10**12
ROOM = 1_000


@pytest.fixture
def cap() -> Account:
    return account(ROOM)


@pytest.fixture
def leases(cap: Account) -> Leases:
    """Of 100."""
    leases = Leases(lambda: 1_000.0)
    leases.held(Hold("before", 100, LONG_US, ((cap, 0),)), 100)
    leases.drawn(cap, 100)
    return leases


def take(leases: Leases, cap: Account, amount: int, id: str) -> Hold:
    return leases.take([cap], amount, id, LONG_US, (), 1)


def test_an_outage_leaves_the_rest_to_the_next(leases: Leases, cap: Account) -> None:
    """What was spent and what is still held there is gone from it; each outage begins with what is left."""
    leases.over(take(leases, cap, 30, "a"), 20, None)
    take(leases, cap, 25, "b")
    assert leases.end() == [(cap, 55)]
    assert leases.standing() == [(cap, 55)]
    take(leases, cap, 55, "c")
    with pytest.raises(StoreAway):
        take(leases, cap, 1, "d")
    assert leases.end() == [(cap, 0)]
    assert leases.standing() == []
    with pytest.raises(StoreAway):
        take(leases, cap, 1, "e")


def test_what_is_asked_anew_is_counted_on_only_as_far_as_it_stays(leases: Leases, cap: Account) -> None:
    """Less than before from the moment in which it is asked for; more only when the store has said so."""
    assert leases.asks(cap, 500) == 100
    assert leases.asks(cap, 40) == 40
    with pytest.raises(StoreAway):
        take(leases, cap, 41, "a")
    leases.drawn(cap, 70)
    take(leases, cap, 70, "b")


@pytest.mark.parametrize("window", ["total", "day", "month"])
def test_what_is_settled_is_free_again_whatever_the_window(window: str) -> None:
    """Calls that hold far more than they cost, one after the other: the lease pays for their costs, not for their holds."""
    cap = BudgetRule(name="cap", limit_nanos=ROOM, window=window).account(Payer(team="a", key_id="k"))  # type: ignore[arg-type]
    assert cap is not None
    leases = Leases(lambda: 1_000.0)
    slots = ((cap, 0 if window == "total" else 1_790_000_000_000_000),)
    leases.held(Hold("before", 100, LONG_US, slots), 100)
    leases.drawn(cap, 100)
    for n in range(71):
        leases.over(replace(take(leases, cap, 30, str(n)), slots=slots), 1, None)
    with pytest.raises(StoreAway):
        take(leases, cap, 30, "over")
    assert leases.end() == [(cap, 29)]


def test_what_a_stream_takes_on_top_is_held_until_it_is_over(leases: Leases, cap: Account) -> None:
    """Of its cost what it held before, elsewhere or here, pays first; what it took and did not use is free again."""
    here, before = take(leases, cap, 20, "here"), Hold("before", 50, LONG_US, ((cap, 0),))
    leases.more(here, 30)
    leases.more(before, 40)
    with pytest.raises(StoreAway):
        leases.more(before, 11)
    leases.over(replace(before, amount_nanos=90), 65, None)
    leases.over(replace(here, amount_nanos=50), 35, None)
    assert leases.end() == [(cap, 100 - 15 - 35)]


def test_a_call_of_the_outage_before_costs_this_one_nothing(leases: Leases, cap: Account) -> None:
    """What it holds has left the lease when that outage ended."""
    old = take(leases, cap, 30, "old")
    assert leases.end() == [(cap, 70)]
    take(leases, cap, 10, "new")
    leases.over(old, 25, None)
    take(leases, cap, 60, "rest")
    assert leases.end() == [(cap, 0)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


def test_the_store_keeps_what_is_counted_on(server: Server) -> None:
    """Though a twentieth of what is left be less by now; nothing is given of an account that has not begun."""
    base = "tollway:{x}:"

    def run(script: str, *words: object) -> bytes:
        return server.say("EVAL", texts()[script], "1", base, "ep", *map(str, words))

    def draw(wanted: int, least: int) -> bytes:
        return run("lease", "lease:r:b", "r", LONG_US, "b", 0, 0, ROOM, wanted, least)

    server.say("HSET", f"{base}epoch", "id", "ep", "open", "0")
    assert draw(50, 50).endswith(b"$1\r\n0\r\n")
    run("seed", "b", 0, 0)
    assert draw(50, 0).endswith(b"$2\r\n50\r\n")
    run("seed", "b", 0, 900)
    assert draw(50, 30).endswith(b"$2\r\n30\r\n"), "a twentieth of 100 is 5, but 30 may be in use"
    assert draw(20, 0).endswith(b"$1\r\n5\r\n")
    assert draw(20, 20).endswith(b"$1\r\n5\r\n"), "what was not drawn is not kept"
