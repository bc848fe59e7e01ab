"""The command: keys for two teams, the replay, the bill, the checks; the keys are revoked whatever happens."""
from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console

from gateway.commands.remote import Remote, options, print_json
from gateway.demo import checks, replay, sessions, show
from gateway.demo.bill import Bill, Json, bill
from gateway.demo.progress import Shown
from gateway.demo.replay import AT_LIMIT, Replay, Side, Turn

TEAMS = {"assistant": True, "nightly": False}
"""Team -> whether it streams: people watch `assistant` write, nobody watches `nightly`. Both have shipped policy files."""
_DAY_US = 86_400_000_000
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What was asked for on the command line."""

    file: Path
    sessions: Sequence[sessions.Session]
    data: Path
    max_tokens: int
    at_once: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """What came of it."""

    demo: str
    seconds: float
    interrupted: bool
    turns: Sequence[Turn]
    bill: Bill
    checks: Sequence[checks.Check]

    @property
    def status(self) -> int:
        """What the process ends with."""
        if self.interrupted:
            return _INTERRUPTED
        return 1 if show.errors(self.turns) or any(check.ok is False for check in self.checks) else 0


@click.command(name="demo")
@click.option(
    "--sessions", "file", type=click.Path(path_type=Path, dir_okay=False), default=sessions.SHIPPED,
    help="recorded sessions, JSON lines of {id, tools, messages, turns}; default: a small set that ships with Tollway",
)  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), help="the first N sessions only")
@click.option("--max-tokens", type=click.IntRange(16, 1024), default=24, show_default=True, help="longest answer of a turn")
@click.option(
    "--concurrency", type=click.IntRange(1, 2), default=2, show_default=True,
    help="2: both teams at once, as on a shared engine; 1: in turns, so that each has the engine to itself",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@options
def command(remote: Remote, file: Path, limit: int | None, max_tokens: int, concurrency: int, as_json: bool) -> None:
    """Replay recorded agent sessions through a running gateway, and print the bill.

    Every session is replayed by two teams with different policies: `assistant`, whose people wait for each word
    (high-speed lane, streamed), and `nightly`, whose jobs nobody waits for (standard lane). Ctrl-C ends early and prints
    the bill so far.
    """
    data = Path(click.get_current_context().params["data"])
    plan = _Plan(
        file=file, sessions=sessions.load(file, limit), data=data, max_tokens=max_tokens, at_once=concurrency
    )
    done = _demo(remote, plan)
    if as_json:
        print_json(_json(plan, done))
    else:
        _print(Console(highlight=False), done)
    sys.exit(done.status)


def _demo(remote: Remote, plan: _Plan) -> _Done:
    demo = secrets.token_hex(4)
    with _sides(remote, demo) as sides:
        comparison = checks.Comparison.begin(remote, plan.data)
        since = time.monotonic()
        with Shown(Console(stderr=True, highlight=False), plan.sessions, sides) as shown:
            played = asyncio.run(_play(remote.url, demo, plan, sides, shown))
        seconds = time.monotonic() - since
        figures = bill(remote, demo)
        compared = comparison.end(remote, played.cut_off)
    return _Done(
        demo=demo,
        seconds=seconds,
        interrupted=played.stopping,
        turns=played.turns,
        bill=figures,
        checks=[compared, checks.cached_from_second_turn(played.turns, figures)],
    )


@contextmanager
def _sides(remote: Remote, demo: str) -> Iterator[list[Side]]:
    """Both teams with a key each, which is good for a day at most and for this demo only."""
    made: list[str] = []
    try:
        sides = []
        for team, stream in TEAMS.items():
            wish = {"team": team, "name": f"tollway demo {demo}", "expires_us": time.time_ns() // 1_000 + _DAY_US}
            key = remote.ask("POST", "/tollway/admin/keys", json=wish)
            made.append(key["id"])
            sides.append(Side(team, stream, key["key"]))
        yield sides
    finally:
        for key_id in made:
            remote.ask("DELETE", f"/tollway/admin/keys/{key_id}")


async def _play(url: str, demo: str, plan: _Plan, sides: Sequence[Side], shown: Shown) -> Replay:
    """Runs the replay. The first Ctrl-C lets turns under way end, so that the bill stays exact; the second cuts them off."""
    async with replay.client(url) as client:
        played = Replay(client=client, demo=demo, max_tokens=plan.max_tokens, tell=shown.tell)
        work = asyncio.create_task(played.run(plan.sessions, sides, plan.at_once))

        def interrupt() -> None:
            if played.stopping:
                work.cancel()
            else:
                played.stopping = True
                shown.say("ending after the turns that are under way; Ctrl-C again cuts them off")

        with _on_interrupt(interrupt), suppress(asyncio.CancelledError):
            await work
    return played


@contextmanager
def _on_interrupt(interrupt: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _print(console: Console, done: _Done) -> None:
    if not console.is_terminal:
        console.width = max(console.width, 100)
    how = "stopped after" if done.interrupted else "took"
    console.print(f"\ndemo {done.demo} {how} {done.seconds:.0f} s", markup=False)
    show.show(console, done.bill, done.turns, done.checks)


def _json(plan: _Plan, done: _Done) -> Json:
    turns = done.turns
    return {
        "demo": done.demo,
        "sessions_file": str(plan.file),
        "sessions": len(plan.sessions),
        "teams": list(TEAMS),
        "seconds": round(done.seconds, 3),
        "interrupted": done.interrupted,
        "turns": {
            "sent": len(turns),
            "answered": sum(turn.code is None for turn in turns),
            "at_context_limit": sum(turn.code == AT_LIMIT for turn in turns),
        },
        "errors": [asdict(turn) for turn in turns if turn.code not in (None, AT_LIMIT)],
        **done.bill.json(),
        "checks": [check.json() for check in done.checks],
    }
