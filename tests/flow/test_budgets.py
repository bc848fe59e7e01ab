"""Budgets and rate limits through whole gateways that share a Valkey: one budget, however many replicas, whatever dies."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.build import PLAIN, PRICES, Process, backend, chat_answer, chat_body, command
from tests.redis_server import Server
from tests.upstream import Site, Upstream, until, whole

COST_NANOS = 160_000
"""Of `chat_answer()` by the tests' prices."""


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def site(upstream: Upstream) -> Site:
    return upstream.site("budgets")


Start = Callable[..., Process]


@pytest.fixture
def start(server: Server, site: Site, tmp_path: Path) -> Iterator[Start]:
    """`start(policy)` starts a replica; all of a test share the Valkey, each has a ledger of its own."""
    running: list[Process] = []

    def replica(policy: dict[str, Any], **config: Any) -> Process:
        folder = tmp_path / f"replica{len(running)}"
        folder.mkdir()
        settings = {"backends": {"up": backend(site)}, "redis_url": server.url, "redis_timeout_ms": 30_000, **config}
        process = Process(folder, settings, {"plain": {**PLAIN, **policy}})
        running.append(process)
        until(lambda: process.ask("GET", "/readyz").json()["budgets"] == "normal", "the store to be open")
        return process

    yield replica
    for process in running:
        process.close()


def budget(process: Process) -> dict[str, Any]:
    found: list[dict[str, Any]] = process.ask("GET", "/tollway/admin/budgets").json()
    return found[0]


def cap(limit_usd: float, **fields: Any) -> dict[str, Any]:
    return {"budgets": [{"name": "cap", "limit_usd": limit_usd, **fields}]}


def test_two_replicas_spend_one_budget(start: Start, site: Site) -> None:
    """Calls at once at both: never over the limit, nothing left reserved, and the refusal is a 402 that is not tried again."""
    first, second = (start(cap(0.004), redis_away="closed") for _ in range(2))  # no leases: nothing else is held
    site.says(whole(chat_answer()))
    for process in (first, second):
        process.key()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: (first, second)[n % 2].chat(chat_body(site.model, max_tokens=5)), range(40)))
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {200, 402}
    no = next(answer for answer in answers if answer.status_code == 402)
    assert (no.json()["error"]["code"], no.headers["x-should-retry"]) == ("budget_exceeded", "false")
    assert 'budget "cap"' in no.json()["error"]["message"]
    for process in (first, second):
        until(lambda process=process: process.chat(chat_body(site.model, max_tokens=5)).status_code == 402, "the budget to be spent")
        found = budget(process)
        assert found["held_nanos"] == 0
        assert found["spent_nanos"] % COST_NANOS == 0
        assert found["spent_nanos"] <= 4_000_000
    assert budget(first)["spent_nanos"] == budget(second)["spent_nanos"] > 2_000_000


def test_a_store_that_forgot_is_told_again(start: Start, server: Server, site: Site) -> None:
    """FLUSHALL, and a server that starts empty: what was spent comes back from the ledger, set and not added."""
    process = start(cap(1))
    site.says(whole(chat_answer()))
    for round, forget in enumerate((lambda: server.say("FLUSHALL"), lambda: (server.kill(), server.start()), lambda: server.say("FLUSHALL")), 1):
        assert process.chat(chat_body(site.model)).status_code == 200
        forget()
        until(lambda: process.chat(chat_body(site.model)).status_code == 200, "calls to be answered")
        assert (budget(process)["spent_nanos"], budget(process)["held_nanos"]) == (2 * round * COST_NANOS, 0)


def test_while_the_store_is_away_the_mode_is_told(start: Start, server: Server, site: Site) -> None:
    """`closed`: 503 for who has a budget, at once; still ready; others go on; figures say so."""
    process = start(cap(1), redis_away="closed")
    site.says(whole(chat_answer()))
    assert process.chat(chat_body(site.model)).status_code == 200
    assert process.ask("GET", "/readyz").json()["budgets"] == "normal"
    server.kill()
    refused = process.chat(chat_body(site.model))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "budget_store_unavailable")
    assert process.chat(chat_body(site.model), team="free").status_code == 200
    ready = process.ask("GET", "/readyz")
    assert (ready.status_code, ready.json()["budgets"]) == (200, "closed")
    assert any("Redis is away" in note for note in ready.json()["notes"])
    assert 'tollway_budget_mode{mode="closed"} 1.0' in process.ask("GET", "/metrics").text
    server.start()
    until(lambda: process.chat(chat_body(site.model)).status_code == 200, "calls to be answered")
    assert 'tollway_budget_usd{budget="cap",figure="spent",team="plain"} 0.00032' in process.ask("GET", "/metrics").text


def test_rate_limits_are_shared_too(start: Start, site: Site) -> None:
    """Requests at an even rate over both replicas: 429 with Retry-After, tried again by those who like to."""
    limits = {"limits": {"requests_per_minute": 30, "rates": [{"name": "big", "scope": "model", "models": ["m-b*"], "concurrent": 20}]}}
    first, second = start(limits), start(limits)
    site.says(whole(chat_answer()))
    began, answers = time.monotonic(), [(first, second)[n % 2].chat(chat_body(site.model)) for n in range(12)]
    more = int((time.monotonic() - began) / 2.0) + 1    # thirty a minute are one every two seconds
    codes = [answer.status_code for answer in answers]
    assert 4 <= codes.count(200) <= 7 + more
    slow = until(lambda: found if (found := first.chat(chat_body(site.model))).status_code == 429 else None, "a refusal")
    assert int(slow.headers["retry-after"]) >= 1
    assert slow.json()["error"]["code"] == "rate_limit_exceeded"
    assert "may start 30 calls a minute" in slow.json()["error"]["message"]


def test_what_was_spent_is_known_after_a_start(start: Start, site: Site) -> None:
    """Without a shared store the ledger alone says it."""
    process = start(cap(0.0012), redis_url=None)
    site.says(whole(chat_answer()))
    assert process.chat(chat_body(site.model, max_tokens=1)).status_code == 200
    process.kill()
    process.start()
    while (code := process.chat(chat_body(site.model, max_tokens=1)).status_code) == 200:
        pass
    assert code == 402
    assert budget(process)["spent_nanos"] <= 1_200_000


def test_a_status_of_its_own(start: Start, site: Site) -> None:
    """For clients that know no 402; they are still told not to try again."""
    process = start(cap(0, status=429), redis_url=None)
    answer = process.chat(chat_body(site.model))
    assert (answer.status_code, answer.json()["error"]["code"], answer.headers["x-should-retry"]) == (429, "budget_exceeded", "false")


def test_an_alert_lets_calls_go_on(start: Start, site: Site) -> None:
    """It counts, and refuses nothing."""
    process = start(cap(0.0001, on_exhausted="alert"))
    site.says(whole(chat_answer()))
    assert {process.chat(chat_body(site.model)).status_code for _ in range(3)} == {200}
    assert budget(process)["spent_nanos"] == 3 * COST_NANOS


def test_a_spent_budget_sends_calls_down(start: Start, site: Site, upstream: Upstream) -> None:
    """To the lane that the policy names; what runs there still counts, and nobody is refused."""
    small = upstream.site("small")
    for each in (site, small):
        each.says(whole(chat_answer()))
    down = {"on_exhausted": "downgrade", "downgrade": {"model": small.model, "lanes": ["cheap"]}}
    lanes = {"lanes": {"cheap": {}}}
    process = start(cap(0.0012, **down), redis_url=None, backends={"up": backend(site), "small": {**backend(small), **lanes}})
    answers = [process.chat(chat_body(site.model, max_tokens=1)) for _ in range(8)]
    assert {answer.status_code for answer in answers} == {200}
    lanes_used = [answer.headers["x-tollway-lane"] for answer in answers]
    assert lanes_used == sorted(lanes_used, reverse=True)
    assert set(lanes_used) == {"standard", "cheap"}
    assert "budget cap is spent" in answers[-1].headers["x-tollway-reason"]
    assert budget(process)["spent_nanos"] == 8 * COST_NANOS
    booked = process.call(answers[-1].headers["x-tollway-call"])
    assert (booked["model"], booked["attempts"][0]["upstream_model"]) == (site.model, small.model)


def test_a_key_may_have_a_budget_of_its_own(start: Start, site: Site) -> None:
    """Beside the team's; other keys of the team go on."""
    process = start({}, redis_url=None)
    site.says(whole(chat_answer()))
    poor = process.make_key("plain", budget={"limit_nanos": 0})["key"]
    rich = process.make_key("plain", budget={"limit_nanos": 10**9, "window": "total"})["key"]
    def ask(key: str) -> int:
        return process.ask("POST", "/v1/chat/completions", key, json=chat_body(site.model)).status_code
    assert [ask(poor), ask(rich), process.chat(chat_body(site.model)).status_code] == [402, 200, 200]
    states = {state["limit_nanos"]: state["spent_nanos"] for state in process.ask("GET", "/tollway/admin/budgets").json()}
    assert states == {0: 0, 10**9: COST_NANOS}


def test_a_rerating_counts_at_once(start: Start, site: Site) -> None:
    """Corrections move what a running budget has spent, by as much as they book."""
    process = start(cap(1), redis_url=None)
    site.says(whole(chat_answer()))
    assert process.chat(chat_body(site.model)).status_code == 200
    prices = process.folder / "prices.toml"
    prices.write_text(prices.read_text().replace('input = "2"', 'input = "4"'))
    answer = process.ask("POST", "/tollway/admin/rerate", json={"from": "2020-01-01", "to": "2100-01-01"})
    assert answer.status_code == 200, answer.text
    assert budget(process)["spent_nanos"] == COST_NANOS + 80_000


def test_a_run_that_spends_too_fast_is_slowed_down(start: Start, site: Site) -> None:
    """Two calls are worth more than a minute's money: the third waits, other runs do not; nor may a call ask for many answers."""
    site.says(whole(chat_answer()))
    process = start({"limits": {"max_choices": 2, "rates": [{"name": "runs", "scope": "run", "usd_per_minute": 0.0003}]}})
    body, mine = chat_body(site.model, max_tokens=50), {"x-tollway-run": "circles"}
    assert [process.chat(body, headers=mine).status_code for _ in range(2)] == [200, 200]
    refused = until(lambda: found if (found := process.chat(body, headers=mine)).status_code == 429 else None, "a refusal")
    assert refused.json()["error"]["message"].startswith("team plain, run circles, may spend 0.0003 USD a minute")
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert process.chat(body, headers={"x-tollway-run": "other"}).status_code == 200
    for n, status in ((2, 200), (3, 400), ("2", 400), (2.0, 400), (-1, 400), (10**9, 400)):
        answer = process.chat({**body, "n": n})
        assert (answer.status_code, n) == (status, n)
        assert status == 200 or answer.json()["error"]["param"] == "n"


@pytest.mark.parametrize("shared", [False, True], ids=["one process", "redis"])
def test_a_cost_that_is_not_known_counts_at_what_was_held(shared: bool, server: Server, site: Site, tmp_path: Path) -> None:
    """Before a restart and after it, also where the store forgot; once there is a price, what it came to is what counts."""
    site.says(whole(chat_answer(model="nobody-knows")))
    lanes = backend(site, models={"plain-model": {"upstream": "nobody-knows"}})
    config = {"backends": {"up": lanes}} | ({"redis_url": server.url, "redis_timeout_ms": 30_000} if shared else {})
    policy = {**PLAIN, **cap(1), "unpriced": "ceiling", "ceiling_usd_per_mtok": 100}
    spent = []
    with Process(tmp_path, config, {"plain": policy}) as process:

        def spend() -> bool:
            """Whether the store is open and has been told of all."""
            assert process.chat(chat_body("plain-model", max_tokens=5)).status_code == 200
            found = budget(process)
            spent.append(found["spent_nanos"])
            return found["held_nanos"] == 0

        until(spend, "the store to be open")
        unknown = len(spent)
        held, rest = divmod(spent[-1], unknown)
        assert (rest, held > COST_NANOS) == (0, True)
        process.kill()
        server.say("FLUSHALL")
        (tmp_path / "prices.toml").write_text(PRICES.replace("m-*", "nobody-knows", 1))
        process.start()
        until(spend, "the store to be open again")
        assert spent[-1] == unknown * held + (len(spent) - unknown) * COST_NANOS
        argv = ["rerate", "--from", "2020-01-01", "--to", "2100-01-01", "--url", process.url, "--key", process.admin_key]
        assert command(*argv)[0] == 0
        until(lambda: budget(process)["spent_nanos"] == len(spent) * COST_NANOS, "what they came to to count")


def test_an_agent_that_goes_in_circles_is_stopped(start: Start, site: Site) -> None:
    """By one and the same prompt, whatever else is in the request; other prompts and other runs go on, at every replica alike."""
    site.says(whole(chat_answer()))
    policy = {"limits": {"rates": [{"name": "circles", "scope": "run", "same_prompt_per_minute": 3}]}}
    one, two = start(policy), start(policy)
    mine = {"x-tollway-run": "circles"}

    def ask(process: Process, text: str, run: dict[str, str] = mine, **fields: Any) -> Any:
        return process.chat(chat_body(site.model, text, **fields), headers=run)

    assert [ask(process, "again", max_tokens=n + 1).status_code for n, process in enumerate([one, two, one])] == [200] * 3
    for process in (one, two):
        refused = ask(process, "again", temperature=0.1)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "same_prompt")
        assert refused.headers["x-should-retry"] == "false"
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert ask(process, "something else").status_code == 200
        assert ask(process, "again", {"x-tollway-run": "other"}).status_code == 200
        assert ask(process, "again", {}).status_code == 200
