"""`tollway serve --workers`: one port, one ledger, one budget, and what dies is started again."""
from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.ledger import reports
from tests.build import (
    PLAIN,
    NotStarted,
    Process,
    backend,
    chat_answer,
    chat_body,
    chat_stream,
    command,
    free_port,
    write_files,
)
from tests.upstream import PATIENCE_S, Gate, Pause, Site, Upstream, stream, until, whole

CAPPED = {**PLAIN, "budgets": [{"name": "cap", "limit_usd": 1}]}


@pytest.fixture
def site(upstream: Upstream, tmp_path: Path) -> Site:
    return upstream.site(tmp_path.name)


@pytest.fixture
def start(tmp_path: Path, site: Site) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def begin(policy: Any = PLAIN, **fields: Any) -> Process:
            config = {"backends": {"b": backend(site)}, **fields}
            return stack.enter_context(Process(tmp_path, config, {"plain": policy}, workers=2))

        yield begin


def children(process: Process) -> list[psutil.Process]:
    """The house first, then workers by number, as long as nothing was restarted."""
    return sorted(psutil.Process(process.process.pid).children(), key=lambda child: child.create_time())


def once(process: Process, body: Any) -> httpx.Response:
    """A call on a connection of its own: any worker may get it."""
    headers = {"authorization": f"Bearer {process.key()}"}
    return httpx.post(process.url + "/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S, trust_env=False, verify=False)


def test_workers_share_port_ledger_keys_and_figures(start: Any, site: Site) -> None:
    """Whoever answers: the entry is in the one ledger, a new key opens every worker at once, a revoked one none, metrics are sums."""
    process = start()
    site.says(whole(chat_answer()))
    process.key()
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: once(process, chat_body(site.model)), range(24)))
    assert {answer.status_code for answer in answers} == {200}
    assert process.attempts(site) == {"ok": 24}
    assert process.metric("tollway_attempts_total") == 24
    made = process.make_key("plain")
    headers = {"authorization": f"Bearer {made['key']}"}
    ask = lambda: httpx.get(process.url + "/v1/models", headers=headers, timeout=PATIENCE_S, trust_env=False, verify=False).status_code  # noqa: E731
    assert {ask() for _ in range(6)} == {200}
    process.ask("DELETE", f"/tollway/admin/keys/{made['id']}")
    assert {ask() for _ in range(6)} == {401}
    assert len(children(process)) == 3
    ledger = reports.connect(f"sqlite:///{process.folder}/data/tollway.db")
    heard = until(lambda: found if len(found := ledger.status()) == 2 else None, "both workers' word")
    ledger.close()
    assert all(said["policies"] == {"plain": heard[0]["policies"]["plain"]} for said in heard), "each worker says how it is"
    journals = list((process.folder / "data" / "journal").glob("*.lock"))
    assert len(journals) == 3, "house and workers have a journal each"


def test_a_conversation_is_one_whichever_worker_has_a_turn(start: Any, site: Site) -> None:
    """Each turn on connections of their own: the clock of the system prompt stands where it was said, in all of them."""
    process = start({**PLAIN, "normalize": {"level": "relocating", "hold_out": 0}})
    site.says(whole(chat_answer()))
    process.key()
    talks: dict[int, list[dict[str, str]]] = {n: [{"role": "user", "content": f"talk {n}"}] for n in range(6)}
    sent: dict[int, list[dict[str, str]]] = {}
    for turn in range(4):
        for n, talk in talks.items():
            clock = {"role": "system", "content": f"You help.\nCurrent time: 10:0{turn}"}
            assert once(process, {"model": site.model, "messages": [clock, *talk]}).status_code == 200
            came = json.loads(site.requests[-1].body)["messages"]
            assert came[0]["content"] == "You help."
            assert came[: len(sent.get(n, []))] == sent.get(n, []), f"turn {turn} of talk {n} goes on from the one before"
            sent[n] = came
            talk += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"turn {turn}"}]
        time.sleep(0.4)


def test_a_budget_is_exact_over_workers(start: Any, site: Site) -> None:
    """All calls at once, each holding its ceiling: what was spent stays under the limit and nothing stays reserved."""
    process = start({**PLAIN, "budgets": [{"name": "cap", "limit_usd": 0.004}]})
    site.says(whole(chat_answer(), before=(Pause(0.02),)))
    body = chat_body(site.model, max_tokens=5)
    process.key()
    with ThreadPoolExecutor(12) as pool:
        codes = [answer.status_code for answer in pool.map(lambda _: once(process, body), range(40))]
    assert set(codes) <= {200, 402}
    while process.chat(body).status_code == 200:
        codes.append(200)
    [budget] = process.ask("GET", "/tollway/admin/budgets").json()
    assert budget["spent_nanos"] == codes.count(200) * 160_000 <= budget["limit_nanos"]
    assert budget["held_nanos"] == 0
    assert budget["limit_nanos"] - budget["spent_nanos"] < 1_000_000, "room that one call's ceiling fits into was used"


def test_a_dead_worker_is_replaced_and_its_calls_are_booked(start: Any, site: Site) -> None:
    """kill -9 of a worker under load: every whole answer is in the ledger once, nothing stays reserved, calls go on."""
    process = start(CAPPED)
    site.says(stream(*chat_stream()[:3], Pause(0.01), *chat_stream()[3:]))
    headers = {"authorization": f"Bearer {process.key()}"}
    whole_ids: list[str] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            with contextlib.suppress(httpx.HTTPError), httpx.Client(trust_env=False, verify=False, timeout=PATIENCE_S) as client:
                answer = client.post(process.url + "/v1/chat/completions", json=chat_body(site.model, stream=True, max_tokens=9), headers=headers)
                if answer.status_code == 200 and answer.content.endswith(b"[DONE]\n\n"):
                    whole_ids.append(answer.headers["x-tollway-call"])

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for victim in (1, 2):
        seen = len(whole_ids)
        until(lambda seen=seen: len(whole_ids) > seen + 40, "calls to be answered")
        os.kill(children(process)[victim].pid, signal.SIGKILL)
        until(lambda: len(children(process)) == 3, "a new worker")
    seen = len(whole_ids)
    until(lambda: len(whole_ids) > seen + 40, "calls to be answered")
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    until(lambda: process.ask("GET", "/tollway/admin/budgets").json()[0]["held_nanos"] == 0, "holds to be free")
    rows = process.ask("GET", "/tollway/usage?by=call_id").json()["rows"]
    assert set(whole_ids) <= {row["call_id"] for row in rows}
    assert all(row["attempts"] == 1 for row in rows)
    assert process.attempts(site).keys() <= {"ok", "orphaned"}
    spent = process.ask("GET", "/tollway/admin/budgets").json()[0]["spent_nanos"]
    booked = process.ask("GET", "/tollway/usage?by=team").json()["rows"][0]["cost_usd"]
    unpriced = process.attempts(site).get("orphaned", 0)
    more = spent - int(booked.replace(".", ""))
    assert (more == 0) if not unpriced else (more % unpriced == 0 and 0 <= more <= unpriced * 2_000_000), (
        "the budget says what the ledger says, and for what has no price what was held"
    )


def test_a_dead_house_takes_all_with_it_and_all_come_back(start: Any, site: Site) -> None:
    """Its books are the database and the journals: nothing is lost, and what was spent is known again."""
    process = start(CAPPED)
    site.says(whole(chat_answer()))
    assert once(process, chat_body(site.model)).status_code == 200
    os.kill(children(process)[0].pid, signal.SIGKILL)
    process.http.close()
    process.http = httpx.Client(trust_env=False, verify=False, timeout=PATIENCE_S)
    until(lambda: _answers(process, site), "calls to be answered again")
    assert process.attempts(site) == {"ok": 2}
    assert process.ask("GET", "/tollway/admin/budgets").json()[0]["spent_nanos"] == 320_000


def _answers(process: Process, site: Site) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return once(process, chat_body(site.model)).status_code == 200
    return False


def test_sigterm_lets_open_streams_of_all_workers_end(start: Any, site: Site) -> None:
    """As with one process; then the whole family is gone."""
    process, gate = start(), Gate()
    site.says(stream(*chat_stream()[:3], gate, *chat_stream()[3:]))
    process.key()
    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(once, process, chat_body(site.model, stream=True, stream_options={"include_usage": True})) for _ in range(10)]
        until(lambda: sum(request.steps_sent == 3 for request in site.requests) == 10, "streams to be open")
        family = children(process)
        process.terminate()
        time.sleep(0.3)
        assert not any(answer.done() for answer in answers)
        gate.open()
        assert {answer.result().content for answer in answers} == {b"".join(chat_stream())}
    assert process.wait() == 0
    assert not any(child.is_running() for child in family)
    process.start()
    assert process.attempts(site) == {"ok": 10}
    assert "Traceback" not in process.text()


def test_nobody_outlives_the_supervisor(start: Any, site: Site) -> None:
    """kill -9 of the process that the operator started ends all, so that a new start is alone on the data."""
    process = start()
    family = children(process)
    process.kill()
    _, alive = psutil.wait_procs(family, PATIENCE_S)
    assert alive == []


def test_a_start_that_fails_says_why_once(tmp_path: Path, site: Site) -> None:
    """The files are read before anything is forked; a taken port is told."""
    with pytest.raises(NotStarted, match="default_class"):
        Process(tmp_path, {"backends": {"b": backend(site)}}, {"plain": "team: plain\ndefault_clas: batch\n"}, workers=2)
    path = write_files(tmp_path, {"backends": {"b": backend(site)}}, {"plain": PLAIN})
    import socket

    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        status, said = command("serve", "--config", str(path), "--port", str(port), "--workers", "2", env={"PROVIDER_KEY": "x"})
    assert status == 1
    assert "--port" in said
