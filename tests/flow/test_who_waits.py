"""Who waits, learnt from a ledger that days of calls have left, and used by the gateway from its next start on."""
from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from tests.build import PLAIN, Process, backend, chat_answer, command
from tests.cases.clocked import write
from tests.upstream import Site, Upstream, until, whole

START = datetime(2026, 11, 2, tzinfo=UTC)
DAYS, PEOPLE, JOBS = 5, 6, 12


def day(luck: random.Random) -> Iterator[tuple[float, str, str]]:
    """Second, client and conversation of a day's calls. All people use one app at the same time, with one key, as the jobs do."""
    for n in range(PEOPLE):
        at = 10 * 3_600 + luck.uniform(0, 60)
        for _ in range(3):
            yield at, "acme/1.0", f"person {n}"
            at += luck.uniform(8, 60)
    for n in range(JOBS):
        at = 2 * 3_600 + luck.uniform(0, 3_000)
        for turn in range(2):
            yield at + turn * 0.2, "acme/1.0", f"job {n}"


class Traffic:
    """Calls through a gateway whose clock is set before each."""

    def __init__(self, process: Process, site: Site, clock: Path) -> None:
        self._process, self._site, self._clock = process, site, clock
        self._turns: Counter[str] = Counter()

    @property
    def calls(self) -> int:
        return self._turns.total()

    def call(self, at: datetime, client: str, talk: str, **headers: str) -> httpx.Response:
        """The next turn of a conversation."""
        write(self._clock, at.isoformat())
        self._turns[talk] += 1
        turns = self._turns[talk]
        used = 100 * turns
        self._site.says(whole(chat_answer(usage={"prompt_tokens": used, "completion_tokens": 5, "total_tokens": used + 5})))
        asked = {"role": "user", "content": talk + "x" * 400}
        messages = [asked, *[{"role": "assistant", "content": "Hello there."}, asked] * (turns - 1)]
        body = {"model": self._site.model, "messages": messages}
        return self._process.chat(body, headers={"user-agent": client, **headers})


def test_what_days_of_calls_teach_decides_and_a_rule_wins(upstream: Upstream, tmp_path: Path) -> None:
    """Precision and recall are of days that were not learnt from; the decision says that it was learnt, and why."""
    site, clock, luck = upstream.site("who_waits"), tmp_path / "clock", random.Random(5)
    write(clock, START.isoformat())
    rules = [{"name": "reports", "when": {"tag": {"job": "report"}}, "class": "batch"}]
    with Process(tmp_path, {"backends": {"b": backend(site)}}, {"plain": {**PLAIN, "rules": rules}}, clock=clock) as process:
        traffic = Traffic(process, site, clock)
        for n in range(DAYS):
            for second, client, talk in sorted(day(luck)):
                answer = traffic.call(START + timedelta(days=n, seconds=second), client, f"{talk} of day {n}")
                assert answer.headers["x-tollway-class"] == "standard"
        until(lambda: sum(process.attempts(site).values()) == traffic.calls, "all calls in the ledger", 60)
        code, text = command("sensitivity", "train", "--config", str(tmp_path / "tollway.yaml"), "--json")
        assert code == 0, text
        told = json.loads(text)
        assert told["used"]
        assert (told["measured"]["precision"], told["measured"]["recall"]) == (1.0, 1.0)
        assert told["measured"]["calls"] > 2 * PEOPLE
        process.terminate()
        process.wait()
        process.start()
        noon, night = START + timedelta(days=9, hours=10), START + timedelta(days=9, hours=2)
        person = [traffic.call(noon + timedelta(seconds=20 * n), "acme/1.0", "somebody") for n in range(2)]
        job = traffic.call(night, "acme/1.0", "some job")
        ruled = traffic.call(noon, "acme/1.0", "a report", **{"x-tollway-tags": "job=report"})
        classes = [answer.headers["x-tollway-class"] for answer in (*person, job, ruled)]
        assert classes == ["interactive", "interactive", "batch", "batch"]
        assert person[0].headers["x-tollway-reason"].startswith("class interactive (learnt)")
        assert ruled.headers["x-tollway-reason"].startswith("class batch (rule reports)")
        assert "class interactive (learnt)" in process.call(person[1].headers["x-tollway-call"])["reason"]
