"""Two replicas with one queue, in PostgreSQL."""
from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.batches.shared_book import PostgresBook, QueueAway
from gateway.batches.turn import FileTurn, PostgresTurn, Turn
from tests.batches.conftest import BATCH_PRICES, QUEUE, config, create, ended, line, look, rows
from tests.batches.provider import Provider
from tests.build import PLAIN, Gateway
from tests.ledger.postgres import Postgres, binaries
from tests.upstream import PATIENCE_S, until

CALLS = 24


def test_a_batch_is_found_at_both_and_made_once(
    provider: Provider, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes it; the other one goes on with it when the first has gone."""
    monkeypatch.setenv("PEPPER", "a pepper that replicas share")
    shared = config(
        provider, queue={**QUEUE, "store": "database", "at_once": 2}, database_url=postgres_url, key_pepper="env:PEPPER"
    )
    night = {**PLAIN, "classes": {"batch": {"wait": {"hours": "0-0"}}}}
    policies = {"plain": PLAIN, "night": night}
    two = Gateway(tmp_path / "two", shared, {"plain": PLAIN, "night": PLAIN}, BATCH_PRICES)
    with two, Gateway(tmp_path / "one", shared, policies, BATCH_PRICES) as one:
        key = one.make_key("plain")["key"]
        for each in (one, two):
            each._keys["plain"] = key
        until(lambda: two.ask("GET", "/v1/models", key).status_code == 200, "the key at the other replica")
        made = create(one, [line(n, "m-live") for n in range(6)])
        over = ended(two, made["id"])
        assert over["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
        assert [row["custom_id"] for row in rows(one, over["output_file_id"])] == [f"c{n}" for n in range(6)]
        assert len(provider.live) == 6
        later = create(two, [line(9, "m-live")])
        assert ended(one, later["id"])["status"] == "completed"
        assert look(one, later["id"])["id"] == later["id"]
    assert len(provider.live) == 7


def test_the_other_replica_goes_on(provider: Provider, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits at one that leaves is made by the next, within seconds."""
    monkeypatch.setenv("PEPPER", "a pepper that replicas share")
    shared = config(provider, queue={**QUEUE, "store": "database"}, database_url=postgres_url, key_pepper="env:PEPPER")
    later = {**PLAIN, "classes": {"batch": {"wait": {"hours": "0-0"}}}}
    with Gateway(tmp_path / "one", shared, {"plain": later}, BATCH_PRICES) as one:
        key = one.key()
        made = create(one, [line(n, "m-live") for n in range(2)])
        with Gateway(tmp_path / "two", shared, {"plain": PLAIN}, BATCH_PRICES) as two:
            two._keys["plain"] = key
            until(lambda: two.ask("GET", "/v1/models", key).status_code == 200, "the key at the other replica")
            assert look(two, made["id"])["status"] == "in_progress"
            one.close()
            assert ended(two, made["id"])["request_counts"]["completed"] == 2


@pytest.mark.parametrize("kind", ["disk", "database"])
async def test_one_process_has_the_turn_until_it_is_gone(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Then the next one that waits for it."""

    def turn() -> Turn:
        return FileTurn(tmp_path / "lock") if kind == "disk" else PostgresTurn(request.getfixturevalue("postgres_url"))

    first, second = turn(), turn()
    await first.take()
    waiting = asyncio.create_task(second.take())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    assert await first.held()
    await first.close()
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert await second.held()
    await second.close()


def test_a_database_that_is_killed_costs_no_call(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls under way end and are noted when it is back: each is made once, answered once and in the ledger once."""
    bin_dir = binaries()
    if bin_dir is None:
        pytest.skip("no PostgreSQL: install the test extra")
    monkeypatch.setenv("PEPPER", "a pepper")
    server = Postgres(bin_dir, durable=True)
    try:
        shared = config(provider, queue={**QUEUE, "store": "database", "at_once": 2}, database_url=server.url, key_pepper="env:PEPPER")
        with Gateway(tmp_path, shared, {"plain": PLAIN}, BATCH_PRICES) as gateway:
            made = create(gateway, [line(n, "m-live") for n in range(CALLS)])
            until(lambda: len(provider.live) >= 3, "some calls")
            server.kill()
            refused = gateway.ask("GET", f"/v1/batches/{made['id']}", gateway.key())
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_unavailable")
            server.start()
            until(lambda: look(gateway, made["id"]).get("status") == "completed", "the batch to end", 2 * PATIENCE_S)
            over = look(gateway, made["id"])
            assert over["request_counts"] == {"total": CALLS, "completed": CALLS, "failed": 0}
            answered = [row["custom_id"] for row in rows(gateway, over["output_file_id"])]
            assert sorted(answered) == sorted(f"c{n}" for n in range(CALLS))
            asked = [call["messages"][0]["content"] for call in provider.live]
            assert sorted(asked) == sorted(f"question {n}" for n in range(CALLS))
            usage = until(lambda: found if (found := spend(gateway))["calls"] >= CALLS else None, "the ledger to have them")
            assert (usage["calls"], usage["attempts"]) == (CALLS, CALLS)
    finally:
        server.stop()


def spend(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.ask("GET", "/tollway/usage?report=spend", gateway.key()).json()
    return found.get("total") or {"calls": 0}


def test_a_book_that_is_closed_lets_go_of_who_waits_for_it(postgres_url: str) -> None:
    """Its statements are asked for in threads, which the end of a gateway waits for."""
    book = PostgresBook(postgres_url)
    book.batches("status = 'in_progress'")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(book._rows, "SELECT pg_sleep(3600)")
        active = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
        until(lambda: book._rows(active)[0][0] == 1, "the statement to be under way")
        book.close()
        with pytest.raises(QueueAway):
            waiting.result(PATIENCE_S)
    with pytest.raises(QueueAway):
        book.batches("status = 'in_progress'")
