"""C1's second half: three replicas behind a balancer, with Redis and PostgreSQL; each of the five is killed under load.

The balancer is nginx, where the machine has one; else one of the tests' own, which the figure then says.
"""
from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from gateway.core.money import nanos
from gateway.ledger.reports import Reports, Slice, connect
from tests import nginx
from tests.build import PLAIN, Process, backend, chat_answer, chat_body, chat_stream
from tests.flow.test_drain import Balancer
from tests.ledger.postgres import Postgres, binaries
from tests.redis_server import Server
from tests.upstream import Pause, Site, Upstream, stream, until, whole

_ENV = {"PEPPER": "a pepper that replicas share", "ADMIN": ""}
_TIGHT_USD = "0.05"


@dataclass
class Told:
    """What clients were told."""

    whole: list[str] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)


@dataclass
class Five:
    """What is killed."""

    replicas: list[Process]
    redis: Server
    postgres: Postgres
    balancer: nginx.Nginx | Balancer
    sites: list[Site]
    """One answers whole, one in streams."""

    def kill(self, name: str) -> None:
        """And starts it again."""
        if name == "redis":
            self.redis.kill()
            time.sleep(0.5)
            self.redis.start()
        elif name == "postgres":
            self.postgres.kill()
            time.sleep(0.5)
            self.postgres.start()
        else:
            replica = self.replicas[int(name[-1])]
            replica.kill()
            replica.start()
            self.balancer.ports = [each.port for each in self.replicas]


@contextlib.contextmanager
def five() -> Iterator[Five]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = binaries()
        assert found is not None, "no PostgreSQL: install the test extra"
        postgres, redis, upstream = Postgres(found, durable=True), Server(), Upstream()
        stack.callback(postgres.stop)
        stack.callback(redis.stop)
        stack.callback(upstream.close)
        sites = [upstream.site(name) for name in ("whole", "streamed")]
        sites[0].says(whole(chat_answer()))
        words = chat_stream()
        sites[1].says(stream(*words[:3], Pause(0.02), *words[3:]))
        config = {
            "backends": {site.name: backend(site) for site in sites},
            "database_url": postgres.hasty_url, "redis_url": redis.url,
            "key_pepper": "env:PEPPER", "durability": "power", "max_attempts": 1,
        }  # fmt: skip
        tight = {**PLAIN, "budgets": [{"name": "cap", "limit_usd": _TIGHT_USD, "window": "total"}]}
        wide = {**PLAIN, "budgets": [{"name": "cap", "limit_usd": 1000, "window": "total"}]}
        replicas = []
        for name in "abc":
            (folder / name).mkdir()
            replicas.append(stack.enter_context(Process(folder / name, config, {"tight": tight, "wide": wide}, env=_ENV)))
        front = Balancer if nginx.binary() is None else nginx.Nginx
        balancer = front([each.port for each in replicas])
        stack.callback(balancer.close)
        yield Five(replicas, redis, postgres, balancer, sites)


def kills(rounds: int, seconds: float) -> tuple[str, bool]:
    """Each of the five in turn, so many times; the figure and whether nothing was lost, doubled or overspent."""
    with five() as system:
        keys = {team: system.replicas[0].make_key(team)["key"] for team in ("tight", "wide")}
        time.sleep(3.0)                         # all replicas know the keys
        told, over = {team: Told() for team in keys}, threading.Event()
        clients = [(system, keys[team], told[team], over) for team in keys for _ in range(3)]
        threads = [threading.Thread(target=_client, args=each) for each in clients]
        for thread in threads:
            thread.start()
        for name in ("replica 0", "replica 1", "replica 2", "redis", "postgres") * rounds:
            time.sleep(seconds)
            system.kill(name)
        time.sleep(seconds)
        over.set()
        for thread in threads:
            thread.join(30)
        books = connect(system.postgres.url)
        try:
            return _verdict(system, told, books, keys)
        finally:
            books.close()


def _client(system: Five, key: str, told: Told, over: threading.Event) -> None:
    headers, turn = {"authorization": f"Bearer {key}"}, 0
    while not over.is_set():
        turn += 1
        streamed = turn % 2 == 1
        body = chat_body(system.sites[streamed].model, stream=streamed, max_tokens=50)
        try:
            with httpx.Client(trust_env=False, verify=False, timeout=20) as client:
                url = f"http://127.0.0.1:{system.balancer.pick()}/v1/chat/completions"
                answer = client.post(url, json=body, headers=headers)
        except httpx.HTTPError as error:
            told.statuses[type(error).__name__] += 1
            continue
        told.statuses[str(answer.status_code)] += 1
        if answer.status_code == 200 and (b"[DONE]" in answer.content or b'"usage"' in answer.content):
            told.whole.append(answer.headers["x-tollway-call"])


def _once(system: Five, key: str) -> None:
    """A call that is made to be counted; its answer is nobody's."""
    url = f"http://127.0.0.1:{system.replicas[0].port}/v1/chat/completions"
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(url, json=chat_body(system.sites[0].model, max_tokens=50), headers={"authorization": f"Bearer {key}"},
                   timeout=20, trust_env=False, verify=False)  # fmt: skip


def _verdict(system: Five, told: dict[str, Told], books: Reports, keys: dict[str, str]) -> tuple[str, bool]:
    answered = {id for each in told.values() for id in each.whole}
    rows: dict[str | None, int] = {}

    def booked() -> bool:
        rows.clear()
        rows.update({row.key[0]: row.attempts for row in books.spend(("call_id",)).rows})
        return answered <= rows.keys()

    with contextlib.suppress(AssertionError):
        until(booked, "every answered call in PostgreSQL", 30)
    spent = {team: books.spent(Slice(where={"team": team})) for team in told}
    counted: dict[str, tuple[int, int]] = {}

    def even() -> bool:
        for each in told.keys() - counted.keys():       # nobody has used that account since Redis began anew
            _once(system, keys[each])
        found = system.replicas[0].ask("GET", "/tollway/admin/budgets")
        if found.status_code != 200:
            return False
        counted.update({row["team"]: (row["spent_nanos"], row["held_nanos"]) for row in found.json()})
        spent.update({team: books.spent(Slice(where={"team": team})) for team in told})
        return all(counted.get(team, (0, 0))[0] == spent[team] for team in told)

    with contextlib.suppress(AssertionError):
        until(even, "Redis to say what the ledger says", 40)
    lost, double = len(answered - rows.keys()), sum(n > 1 for n in rows.values())
    over = max(spent["tight"] - nanos(_TIGHT_USD), 0)
    off = {team: counted.get(team, (0, 0))[0] - spent[team] for team in told}
    statuses = sum((each.statuses for each in told.values()), Counter[str]())
    figure = (
        f"five kinds killed behind {type(system.balancer).__name__}: {len(answered)} answered, {lost} lost, {double} double; "
        f"overspent {over} nano-dollars, "
        f"Redis - ledger {off}, unknown costs {_unknown(books)}, tight budget used {spent['tight'] / nanos(_TIGHT_USD):.1%}; "
        f"clients saw {dict(statuses)}"
    )
    return figure, not lost and not double and not over and not any(off.values()) and len(answered) > 0


def _unknown(books: Reports) -> dict[str | None, int]:
    """Attempts whose cost is not known, by status: Redis has them at what was held."""
    return {row.key[0]: row.unpriced for row in books.spend(("status",)).rows if row.unpriced}
