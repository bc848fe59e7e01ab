"""C17: replicas whose machines' clocks are ten minutes apart, on one PostgreSQL and one Redis, keep one time."""
from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.build import PLAIN, Process, backend, chat_answer, chat_body
from tests.ledger.postgres import Postgres, binaries
from tests.redis_server import Server
from tests.upstream import PATIENCE_S, Site, Upstream, until, whole

APART_S = {"ahead": 300, "behind": -300}
SECOND_US = 1_000_000
_SOON_S = 30
"""Far below what the clocks are apart, far above what a slow machine needs."""
BUDGETS = [{"name": "cap", "limit_usd": 100, "window": "day"}]


@pytest.fixture(scope="module")
def replicas(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, Process, Site]]:
    bin_dir = binaries()
    assert bin_dir is not None, "no PostgreSQL: install the test extra"
    folder, site = tmp_path_factory.mktemp("clocks"), upstream.site("clocks")
    site.says(whole(chat_answer()))
    with contextlib.ExitStack() as stack:
        postgres, redis = Postgres(bin_dir), Server()
        stack.callback(postgres.stop)
        stack.callback(redis.stop)
        config = {
            "backends": {"b": backend(site)}, "database_url": postgres.url, "redis_url": redis.url, "key_pepper": "env:PEPPER",
            "redis_away": "closed",     # no money is drawn ahead, which would count as held
        }  # fmt: skip

        def start(name: str, workers: int) -> Process:
            (folder / name).mkdir()
            clock = folder / name / "clock"
            clock.write_text(str(APART_S[name] * 10**9))
            env = {"PEPPER": "a pepper that replicas share"}
            return stack.enter_context(
                Process(folder / name, config, {"plain": {**PLAIN, "budgets": BUDGETS}}, env=env, clock=clock, workers=workers)
            )

        yield start("ahead", 1), start("behind", 2), site


def status(replica: Process, key: str, site: Site) -> int:
    return replica.ask("POST", "/v1/chat/completions", key, json=chat_body(site.model, max_tokens=20)).status_code


def test_keys_are_made_and_revoked_everywhere(replicas: Any) -> None:
    """Whoever makes and revokes them: a revocation is not one that lies five minutes ahead, nor a change one that was seen."""
    *pair, site = replicas
    for maker, other in (pair, reversed(pair)):
        made = maker.make_key("plain")
        until(lambda: status(other, made["key"], site) == 200, "the new key at the other replica", _SOON_S)  # noqa: B023
        assert maker.ask("DELETE", f"/tollway/admin/keys/{made['id']}").status_code == 200
        until(lambda: status(other, made["key"], site) == 401, "the revocation at the other replica", _SOON_S)  # noqa: B023


def test_a_key_expires_at_one_time(replicas: Any) -> None:
    """By the database's clock: not five minutes early here and five minutes late there."""
    *pair, site = replicas
    made = pair[0].make_key("plain", expires_us=time.time_ns() // 1_000 + 120 * SECOND_US)
    for replica in pair:
        until(lambda: status(replica, made["key"], site) == 200, "the key at both", _SOON_S)  # noqa: B023

    def ends_soon() -> bool:
        """False where the machine was so slow that the time lay in the past."""
        soon = time.time_ns() // 1_000 + 3 * SECOND_US
        return pair[1].ask("PATCH", f"/tollway/admin/keys/{made['id']}", json={"expires_us": soon}).status_code == 200

    until(ends_soon, "an end of the key in three seconds", _SOON_S)
    for replica in pair:
        until(lambda: status(replica, made["key"], site) == 401, "its end at both", _SOON_S)  # noqa: B023


def test_calls_are_dated_by_one_clock_and_paid_from_one_budget(replicas: Any) -> None:
    *pair, site = replicas
    key = pair[0].make_key("plain")["key"]
    until(lambda: status(pair[1], key, site) == 200, "the key at the other replica", _SOON_S)
    for replica in pair:
        began_s = time.time()
        answer = replica.ask("POST", "/v1/chat/completions", key, json=chat_body(site.model, max_tokens=20))
        assert began_s - 1 <= _dated_s(answer.headers["x-tollway-call"]) <= time.time() + 1

    def told(replica: Process) -> Any:
        return [(row["team"], row["spent_nanos"], row["held_nanos"]) for row in replica.ask("GET", "/tollway/admin/budgets").json()]

    until(lambda: told(pair[0]) == told(pair[1]) and told(pair[0])[0][2] == 0, "one sum at both", _SOON_S)


def _dated_s(call_id: str) -> float:
    """Calls' names begin with their time."""
    return int(call_id.removeprefix("call_")[:11], 16) / 1e3


def test_a_clock_that_is_set_forward_ends_no_deadline(tmp_path: Path, upstream: Upstream) -> None:
    """What a call may take is not reckoned by the wall clock: here that jumps an hour while the body is on its way."""
    site, clock = upstream.site(tmp_path.name), tmp_path / "clock"
    site.says(whole(chat_answer()))
    clock.write_text("0")
    with Process(tmp_path, {"backends": {"b": backend(site)}}, {"plain": PLAIN}, clock=clock) as process:
        body = json.dumps(chat_body(site.model)).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {process.key()}\r\n"
        head += f"content-type: application/json\r\nx-tollway-deadline-ms: 600000\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", process.port), PATIENCE_S) as sock:
            sock.sendall(head.encode() + body[:10])
            process.ask("GET", "/healthz")      # the loop has come round: the head has been read
            clock.write_text(str(3_600 * 10**9))
            sock.sendall(body[10:])
            assert sock.recv(65_536).startswith(b"HTTP/1.1 200 ")
