"""The gateway as a process: signals, crashes, and what it says when it cannot start."""
from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.access.keys import mint
from gateway.ledger.records import Progress, read
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

Start = Callable[..., Process]
KILLS = int(os.environ.get("TOLLWAY_KILLS", 1))


@pytest.fixture
def site(upstream: Upstream, tmp_path: Path) -> Site:
    return upstream.site(tmp_path.name)


@pytest.fixture
def start(tmp_path: Path, site: Site) -> Iterator[Start]:
    """Starts a gateway process in front of the site; stops it in the end."""
    with contextlib.ExitStack() as stack:

        def begin(**fields: Any) -> Process:
            config = {"backends": {"b": backend(site)}, **fields}
            return stack.enter_context(Process(tmp_path, config, {"plain": PLAIN}))

        yield begin


def streams(process: Process, site: Site, count: int) -> tuple[list[threading.Thread], list[bytes]]:
    """Open streams in threads, and what they end up with."""
    got: list[bytes] = []
    url, headers = process.url + "/v1/chat/completions", {"authorization": f"Bearer {process.key()}"}

    def read() -> None:
        with contextlib.suppress(httpx.HTTPError):
            body = chat_body(site.model, stream=True, stream_options={"include_usage": True})
            got.append(process.http.post(url, json=body, headers=headers).content)

    threads = [threading.Thread(target=read) for _ in range(count)]
    for thread in threads:
        thread.start()
    site.wait_for(count)
    return threads, got


def listens(process: Process) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", process.port)) == 0


def test_sigterm_lets_open_streams_end(start: Start, site: Site) -> None:
    """New connections are refused, what was begun is finished, booked and then the process ends with 0."""
    process, gate = start(), Gate()
    site.says(stream(*chat_stream()[:3], gate, *chat_stream()[3:]))
    threads, got = streams(process, site, 10)
    until(lambda: all(request.steps_sent == 3 for request in site.requests), "streams to be open")
    process.terminate()
    until(lambda: not listens(process), "the door to close")
    gate.open()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert got == [b"".join(chat_stream())] * 10
    assert process.wait() == 0
    process.start()
    assert process.attempts(site) == {"ok": 10}
    assert "Traceback" not in process.text()


def test_sigterm_cuts_what_does_not_end_in_time(start: Start, site: Site) -> None:
    """After `drain_s` the process goes; what was in flight is booked, once."""
    process = start(drain_s=1)
    site.says(stream(*chat_stream()[:3], Gate()))
    threads, _ = streams(process, site, 3)
    until(lambda: all(request.steps_sent == 3 for request in site.requests), "streams to be open")
    process.terminate()
    assert process.wait() is not None
    for thread in threads:
        thread.join(PATIENCE_S)
    process.start()
    booked = process.attempts(site)
    assert sum(booked.values()) == 3
    assert "ok" not in booked


def test_kill_loses_no_answered_call(start: Start, site: Site) -> None:
    """SIGKILL under load: every call whose answer was whole is in the ledger afterwards, each attempt once; the rest is orphaned."""
    process = start()
    site.says(stream(*chat_stream()[:3], Pause(0.002), *chat_stream()[3:]))
    headers = {"authorization": f"Bearer {process.key()}"}
    whole_ids: list[str] = []
    for _ in range(KILLS):
        stop, seen = threading.Event(), len(whole_ids)

        def call(stop: threading.Event = stop, url: str = process.url + "/v1/chat/completions") -> None:
            with httpx.Client(verify=False, trust_env=False, timeout=PATIENCE_S) as client, contextlib.suppress(httpx.HTTPError):
                while not stop.is_set():
                    answer = client.post(url, json=chat_body(site.model, stream=True), headers=headers)
                    if answer.status_code == 200 and answer.content.endswith(b"[DONE]\n\n"):
                        whole_ids.append(answer.headers["x-tollway-call"])

        threads = [threading.Thread(target=call) for _ in range(12)]
        for thread in threads:
            thread.start()
        until(lambda seen=seen: len(whole_ids) > seen + min(150, 8_000 // KILLS), "calls to be answered")
        process.kill()
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        process.start()
    rows: list[dict[str, Any]] = []

    def recovered() -> bool:
        rows[:] = process.ask("GET", "/tollway/usage?by=call_id").json()["rows"]
        return set(whole_ids) <= {row["call_id"] for row in rows}

    until(recovered, "every answered call to be booked")
    booked = {row["call_id"]: row for row in rows}
    assert all(row["attempts"] == 1 for row in rows)
    assert process.attempts(site).keys() <= {"ok", "orphaned"}
    assert process.attempts(site)["ok"] >= len(whole_ids)
    assert len(booked) - len(whole_ids) <= 24 * KILLS  # in flight, or answered and not yet seen by its client
    assert process.chat(chat_body(site.model, stream=True)).status_code == 200
    print("\nC1", {"kills": KILLS, "answered": len(whole_ids), "lost": 0, **process.attempts(site)})


def noted_tokens(process: Process) -> int:
    """Of the stream that has come furthest, as the journal has it."""
    found = [record for path in (process.folder / "data" / "journal").rglob("*") if path.is_file() for record in read(path)[0]]
    return max((record.output_tokens for record in found if isinstance(record, Progress)), default=0)


def test_a_killed_stream_is_booked_as_far_as_it_had_come(start: Start, site: Site) -> None:
    """Its output is estimated from what the journal noted a second before."""
    process, text = start(), "word " * 200
    site.says(stream(*chat_stream(text)[:2], Gate()))
    streams(process, site, 1)
    until(lambda: site.requests[0].steps_sent == 2, "the stream")
    until(lambda: noted_tokens(process) >= 200, "the journal to note how far it has come")
    process.kill()
    process.start()
    (call,) = process.booked(site)
    (attempt,) = call["attempts"]
    assert (attempt["status"], attempt["tokens_from"]) == ("orphaned", "estimate")
    assert 200 <= attempt["tokens"]["output"] <= 300
    tokens = attempt["tokens"]
    assert tokens["uncached"] > 0
    assert Decimal(attempt["cost_usd"]) == (tokens["uncached"] * 2 + tokens["output"] * 10) / Decimal(10**6)
    assert attempt["price_rows"]


def test_an_orphan_without_a_price_has_no_cost(start: Start, site: Site) -> None:
    """Not known is not free."""
    process = start(backends={"b": backend(site, provider="nobody")})
    site.says(stream(*chat_stream("word")[:2], Gate()))
    streams(process, site, 1)
    until(lambda: site.requests[0].steps_sent == 2, "the stream")
    process.kill()
    process.start()
    (call,) = process.booked(site)
    (attempt,) = call["attempts"]
    assert (attempt["status"], attempt["cost_usd"]) == ("orphaned", None)


def test_a_start_on_the_same_data_knows_keys_and_calls(start: Start, site: Site) -> None:
    """Keys, revocations and entries survive."""
    process = start()
    site.says(whole(chat_answer()))
    gone = process.make_key("plain")
    process.ask("DELETE", f"/tollway/admin/keys/{gone['id']}")
    call_id = process.chat(chat_body(site.model)).headers["x-tollway-call"]
    process.terminate()
    assert process.wait() == 0
    process.start()
    assert process.chat(chat_body(site.model)).status_code == 200
    assert process.ask("POST", "/v1/chat/completions", gone["key"], json=chat_body(site.model)).status_code == 401
    assert process.call(call_id)["cost_usd"] == "0.000160000"


def test_nothing_secret_is_printed(start: Start, site: Site) -> None:
    """No key, no provider credential, no prompt and no answer in the log, whatever happens to a call."""
    process = start(log_level="debug")
    site.says(whole(chat_answer("canary-answer")), whole({"error": {"message": "x", "type": "y"}}, 500), stream(*chat_stream()[:3]))
    for stream_it in (False, False, True, True):
        process.chat(chat_body(site.model, "canary-prompt", stream=stream_it), headers={"cookie": "canary=1"})
    process.chat(b"{canary")
    process.close()
    text = process.text()
    for secret in (process.key(), process.admin_key, process.env["PROVIDER_KEY"], "canary"):
        assert secret not in text


# starts that fail


@pytest.mark.parametrize(("edit", "says"), [
    pytest.param({"backend": {}}, ["tollway.yaml:", "backend", "backends"], id="a misspelt field"),
    pytest.param({"max_attempts": 0}, ["tollway.yaml:", "max_attempts"], id="out of range"),
    pytest.param({"backends": {}}, ["backends"], id="no backend"),
    pytest.param({"backends": {"b": {"dialect": "openai", "url": "http://127.0.0.1:9", "models": ["m"], "key": "env:NOT_SET_ANYWHERE"}}},
                 ["backends.b.key", "NOT_SET_ANYWHERE"], id="an unset variable"),
    pytest.param({"backends": {"b": {"dialect": "openai", "url": "http://127.0.0.1:9", "models": ["m"], "key": "sk-secret-canary"}}},
                 ["tollway.yaml:", "env:"], id="a secret in the file"),
    pytest.param({"backends": {"b": {"dialect": "opanai", "url": "http://127.0.0.1:9", "models": ["m"]}}},
                 ["tollway.yaml:", "opanai", "openai"], id="a misspelt dialect"),
    pytest.param({"backends": {"b": {"dialect": "openai", "url": "127.0.0.1:9", "models": ["m"]}}},
                 ["tollway.yaml:", "https://"], id="no address"),
    pytest.param({"policies": "nowhere"}, ["nowhere"], id="no policy folder"),
    pytest.param({"prices": ["nowhere.toml"]}, ["nowhere.toml"], id="no price file"),
    pytest.param({"database_url": "mysql://x/y"}, ["tollway.yaml:", "database_url"], id="a database we do not know"),
])  # fmt: skip
def test_a_start_that_fails_says_why_and_where(tmp_path: Path, site: Site, edit: dict[str, Any], says: list[str]) -> None:
    """One message with place and way out, no stack trace, no secret; exit status 1."""
    path = write_files(tmp_path, {"backends": {"b": backend(site)}, **edit}, {"plain": PLAIN})
    status, said = command("serve", "--config", str(path), "--port", str(free_port()), env={"PROVIDER_KEY": "x"})
    assert status == 1, said
    for word in says:
        assert word in said
    assert "Traceback" not in said
    assert "canary" not in said


def test_a_bad_policy_stops_the_start(tmp_path: Path, site: Site) -> None:
    """File, line, nearest word."""
    path = write_files(tmp_path, {"backends": {"b": backend(site)}}, {"plain": "team: plain\ndefault_clas: batch\n"})
    status, said = command("serve", "--config", str(path), "--port", str(free_port()), env={"PROVIDER_KEY": "x"})
    assert status == 1
    assert "plain.yaml:2" in said
    assert "default_class" in said


def test_a_port_that_is_taken_is_told(tmp_path: Path, site: Site) -> None:
    """With the option that names another."""
    path = write_files(tmp_path, {"backends": {"b": backend(site)}}, {"plain": PLAIN})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, said = command("serve", "--config", str(path), "--port", str(port), env={"PROVIDER_KEY": "x"})
    assert status == 1
    assert f"127.0.0.1:{port}" in said
    assert "--port" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_gateway_for_the_network_needs_an_admin_key_of_its_own(tmp_path: Path, site: Site, host: str) -> None:
    """The one made at the first start is for one machine."""
    path = write_files(tmp_path, {"backends": {"b": backend(site)}}, {"plain": PLAIN})
    status, said = command("serve", "--config", str(path), "--host", host, "--port", str(free_port()), env={"PROVIDER_KEY": "x"})
    assert status == 1
    assert "admin_key" in said


@pytest.mark.parametrize(("said", "starts"), [
    pytest.param({}, False, id="nothing"), pytest.param({"proxies": ["10.0.0.0/8"]}, True, id="a proxy"),
    pytest.param({"plain_http": True}, True, id="it is meant"),
])  # fmt: skip
def test_a_gateway_for_the_network_needs_tls_in_front(tmp_path: Path, site: Site, said: dict[str, object], starts: bool) -> None:
    """T19: keys do not travel unencrypted by an oversight. What it says next, where it would start, is that the port is taken."""
    path = write_files(tmp_path, {"backends": {"b": backend(site)}, "admin_key": "env:ADMIN", **said}, {"plain": PLAIN})
    env = {"PROVIDER_KEY": "x", "ADMIN": mint()[1].reveal()}
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, text = command("serve", "--config", str(path), "--host", "0.0.0.0", "--port", port, env=env)
    assert status == 1
    assert ("proxies" in text, "--port" in text) == (not starts, starts)


def test_a_missing_settings_file_is_told(tmp_path: Path) -> None:
    status, said = command("serve", "--config", str(tmp_path / "nothing.yaml"))
    assert status in (1, 2)
    assert "nothing.yaml" in said
    assert "Traceback" not in said


def test_a_process_that_cannot_start_ends(tmp_path: Path, site: Site) -> None:
    """It does not hang, and what it printed is the message."""
    with pytest.raises(NotStarted, match="default_class"):
        Process(tmp_path, {"backends": {"b": backend(site)}}, {"plain": "team: plain\ndefault_clas: batch\n"})


def test_it_does_not_open_itself_to_the_network_without_a_key_of_the_operators(tmp_path: Path, site: Site) -> None:
    """T19: on an address that others can reach it wants an admin key that somebody chose."""
    write_files(tmp_path, {"backends": {"b": backend(site)}}, {"plain": PLAIN})
    argv = ["serve", "--config", str(tmp_path / "tollway.yaml"), "--host", "0.0.0.0", "--port", str(free_port())]
    status, said = command(*argv, env={"PROVIDER_KEY": "sk-x"})
    assert status == 1
    assert "admin key" in said
