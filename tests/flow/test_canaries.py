"""Words that must not leave their place: secrets and prompts in no file, log, metric or store (C22), one team's in nothing that
another gets (C21). Answers under an Idempotency-Key are the exception: they are kept for a day, to be given again."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.build import PLAIN, Process, backend, chat_answer, chat_body, chat_stream, messages_body
from tests.redis_server import Server
from tests.upstream import RESET, End, Site, Upstream, stream, until, whole

SECRET = "canary-provider-key-7c1"
PROMPTS = {"alpha": "canary-alpha-9f2", "beta": "canary-beta-4d8"}
ANSWER = "canary-answer-b33"
ECHO = "canary-echo-5a0"
"""In a provider's error, which may quote the prompt."""
LONG = "The toll road is long. " * 400
"""So much in front that prefixes and their explanations are worth something."""


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def busy(upstream: Upstream, store: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, Site]]:
    """A gateway after calls of two teams by all paths, well and badly answered."""
    folder = tmp_path_factory.mktemp("canaries")
    site = upstream.site(folder.name)
    config = {
        "backends": {"b": {**backend(site, key="env:CANARY_KEY"), "cache_salt": True}}, "redis_url": store.url, "redis_timeout_ms": 30_000,
        "log_level": "debug", "durability": "power",
    }  # fmt: skip
    budget = {**PLAIN, "budgets": [{"name": "cap", "limit_usd": 100}]}
    with Process(folder, config, {"alpha": budget, "beta": budget}, env={"CANARY_KEY": SECRET}) as process:
        until(lambda: process.ask("GET", "/readyz").json()["budgets"] == "normal", "the store to be open")
        for team, canary in PROMPTS.items():
            for script in (
                whole(chat_answer(ANSWER)), stream(*chat_stream(ANSWER)), whole({"error": {"message": ECHO, "type": "x"}}, 500),
                stream(*chat_stream(ANSWER)[:2], End.CUT), whole({"error": {"message": ECHO}}, 401), stream(b"data: {" + ANSWER.encode() + b"\n\n"),
                RESET, whole(chat_answer(ANSWER)),
            ):
                site.says(script)
                body = chat_body(site.model, f"{LONG}{canary}", stream=b"data:" in script.body, user=canary)
                process.chat(body, team=team, headers={"x-tollway-run": "run-1", "cookie": f"c={canary}", "x-other": canary})
                site.says(whole(chat_answer(ANSWER)))
                process.chat(messages_body(site.model, f"{canary} {LONG}", system=canary), team=team, path="/v1/messages")
            process.chat(b'{"model": "' + canary.encode(), team=team)
            process.chat(chat_body(f"no-such-{canary[:6]}", canary), team=team)
        process.ask("POST", "/tollway/admin/keys", json={"team": "alpha", "name": "x", "role": SECRET})
        until(lambda: process.ask("GET", "/tollway/usage").json()["total"]["attempts"] >= 8, "calls to be booked")
        yield process, site


def told(process: Process, team: str | None = None) -> str:
    """All that the paths say, to a team or to the operator."""
    key = process.key(team) if team else process.admin_key
    paths = ["/tollway/usage?by=call_id", "/tollway/usage?by=run,key", "/tollway/runs/run-1", "/v1/models", "/tollway/me", "/readyz"]
    paths += [] if team else ["/metrics", "/tollway/admin/audit", "/tollway/admin/budgets", "/tollway/admin/policies"]
    texts = [process.ask("GET", path, key).text for path in paths]
    calls = process.ask("GET", "/tollway/usage?by=call_id", process.admin_key).json()["rows"]
    return "\n".join([*texts, *(process.ask("GET", f"/tollway/calls/{row['call_id']}", key).text for row in calls)])


def test_no_secret_and_no_prompt_is_in_what_is_kept_or_told(busy: tuple[Process, Site], store: Server) -> None:
    """Files of the data folder, the log, Redis, metrics, reports, environments of children; the provider alone has seen both."""
    process, site = busy
    assert site.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert PROMPTS["alpha"].encode() in site.requests[0].body
    store.say("SAVE")
    places: dict[str, bytes] = {"log": process.text().encode(), "told": told(process).encode()}
    places |= {str(path): path.read_bytes() for path in Path(process.folder, "data").rglob("*") if path.is_file()}
    places |= {str(path): path.read_bytes() for path in Path(store.dir).rglob("*") if path.is_file()}
    for child in psutil.Process(process.process.pid).children(recursive=True):
        places[f"environment of {child.pid}"] = Path(f"/proc/{child.pid}/environ").read_bytes()
    secrets = [SECRET, *PROMPTS.values(), ANSWER, ECHO, process.key("alpha"), process.key("beta")]
    found = [(word, place) for place, content in places.items() for word in secrets if word.encode() in content]
    assert not [hit for hit in found if not hit[1].endswith(("keys/admin", "keys/pepper"))]
    print("\nC22", {"places": len(places), "bytes": sum(map(len, places.values())), "found": 0})


def test_a_team_gets_nothing_of_another(busy: tuple[Process, Site]) -> None:
    """Same prompts from both: neither sees the other's calls, runs, sums or words, and their caches are salted apart."""
    process, site = busy
    for mine, other in (("alpha", "beta"), ("beta", "alpha")):
        text = told(process, mine)
        assert PROMPTS[other] not in text
        others: list[dict[str, Any]] = process.ask("GET", f"/tollway/usage?by=call_id&team={other}").json()["rows"]
        for row in others[:5]:
            assert process.ask("GET", f"/tollway/calls/{row['call_id']}", process.key(mine)).status_code == 404
            assert row["call_id"] not in process.ask("GET", "/tollway/usage?by=call_id", process.key(mine)).text
        assert process.ask("GET", f"/tollway/usage?team={other}", process.key(mine)).status_code == 404
    salts = {PROMPTS[team]: set[str]() for team in PROMPTS}
    for request in site.requests:
        for canary, seen in salts.items():
            if canary.encode() in request.body and b'"cache_salt"' in request.body:
                seen.add(request.body.split(b'"cache_salt"')[1].split(b'"')[1].decode())
    alpha, beta = salts.values()
    assert alpha
    assert beta
    assert not alpha & beta
    print("\nC21", {"teams": 2, "salts apart": True, "canaries in foreign answers": 0})


def test_a_crash_would_leave_no_dump(busy: tuple[Process, Site]) -> None:
    """Memory holds keys and prompts."""
    limits = Path(f"/proc/{busy[0].process.pid}/limits").read_text()
    assert next(line for line in limits.splitlines() if line.startswith("Max core file size")).split()[4:6] == ["0", "0"]
