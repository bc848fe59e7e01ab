"""How far a replay is: a bar for each team on a terminal that can draw one, else a line for each session that has ended.

It goes to stderr, so that `--json` leaves stdout to the figures.
"""
from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gateway.demo.replay import Side, Turn
from gateway.demo.sessions import Session


class Shown:
    """Context manager; `tell` is what `Replay` calls."""

    def __init__(self, console: Console, sessions: Sequence[Session], sides: Sequence[Side]) -> None:
        self._console = console
        self._sessions = len(sessions)
        self._bars = _bars(console) if console.is_terminal and not console.is_dumb_terminal else None
        total = sum(len(session.turns) for session in sessions)
        self._tasks: dict[str, TaskID] = {}
        for side in sides if self._bars is not None else ():
            assert self._bars is not None
            self._tasks[side.team] = self._bars.add_task(side.team, total=total, done=0, of=len(sessions), now="")
        self._done = dict.fromkeys((side.team for side in sides), 0)
        self._sent: dict[tuple[str, str], list[Turn]] = {}
        self._since = time.monotonic()

    def __enter__(self) -> Shown:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def tell(self, side: Side, session: Session, turn: Turn | None) -> None:
        sent = self._sent.setdefault((side.team, session.id), [])
        if turn is not None:
            sent.append(turn)
        else:
            self._done[side.team] += 1
        if self._bars is None:
            if turn is None:
                self._line(side, session, sent)
            return
        task, skipped = self._tasks[side.team], len(session.turns) - len(sent)
        now = f"{session.id} {len(sent)}/{len(session.turns)}"
        self._bars.update(task, advance=1 if turn else skipped, done=self._done[side.team], now=now)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _line(self, side: Side, session: Session, sent: Sequence[Turn]) -> None:
        answered, code = sum(turn.code is None for turn in sent), sent[-1].code if sent else None
        turns = f"{answered} of {len(session.turns)} turns answered" + (f", then {code}" if code else "")
        passed = time.monotonic() - self._since
        self.say(f"{passed:6.1f} s  {side.team} {self._done[side.team]}/{self._sessions}: {session.id}, {turns}")


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:9}"),
        TextColumn("sessions {task.fields[done]}/{task.fields[of]}"),
        BarColumn(bar_width=20),
        TextColumn("turns"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}", markup=False),
        console=console,
    )
