"""Where the runs of a backtest are made: in processes of this machine, or on a Ray cluster.

A job is one policy folder over one part of the traffic. Here each process reads the traffic by itself; on a cluster, where no
file need be shared, the calls and the policy files travel with the job.
"""
from __future__ import annotations

import importlib
import multiprocessing
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from queue import Empty
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gateway.backtests.traffic import Traffic
from router_policies.backtest import WHOLE, Part, parts, router, run
from router_policies.files import load_folder
from router_policies.simulate import Reality, Recorded
from router_policies.tally import Tally

_LOOK_S = 0.2
_told: Any = None
"""In a process of `here`: the queue on which progress is told."""


class EngineFailed(Exception):
    """The runs could not be made to their end; the text says why."""


class Task(NamedTuple):
    """Two folders of policies over the same traffic and the same luck."""

    folders: tuple[Path, Path]
    traffic: Traffic
    lanes: list[Reality]
    seed: int
    shards: int | None = None
    """Pieces that each run is made in, one beside the other; None: as the engine has processors to spare, one here."""


Engine = Callable[[Task], list[Tally]]


def here(task: Task) -> list[Tally]:
    """A process for each run and shard, as many at once as there are processors."""
    pieces = _cut(task.traffic, task.shards or 1) if (task.shards or 1) > 1 else [WHOLE]
    context = multiprocessing.get_context("spawn")
    told, workers = context.Queue(), max(min(2 * len(pieces), multiprocessing.cpu_count()), 2)
    with _progress(task.traffic.count()) as said, ProcessPoolExecutor(workers, context, _told_by, (told,)) as pool:
        jobs = [[pool.submit(_job, task, folder, piece) for piece in pieces] for folder in task.folders]
        try:
            _watch(told, [job for one_run in jobs for job in one_run], said)
            return [_sum([job.result() for job in one_run]) for one_run in jobs]
        except BrokenExecutor as error:
            raise EngineFailed("a run ended too early; is memory short?") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def on_ray(task: Task) -> list[Tally]:
    """Shards over the nodes of a Ray cluster: the one that the environment names (RAY_ADDRESS), else one on this machine."""
    ray = importlib.import_module("ray")
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    try:
        processors = int(ray.cluster_resources().get("CPU", 2))
        pieces = _cut(task.traffic, task.shards or max(processors // 2, 1))
        far = ray.remote(num_cpus=1)(_far_job)
        files = [_texts(folder) for folder in task.folders]
        lanes, jobs = ray.put(task.lanes), list[list[Any]]([[], []])
        for piece, calls in _lists(task.traffic, pieces):
            shipped = ray.put(calls)
            for one_run, texts in zip(jobs, files, strict=True):
                one_run.append(far.remote(texts, shipped, lanes, task.seed, piece))
        with _progress(len(pieces), "shards") as said:
            left = [job for one_run in jobs for job in one_run]
            while left:
                ready, left = ray.wait(left)
                said(len(ready))
        return [_sum(ray.get(one_run)) for one_run in jobs]
    finally:
        ray.shutdown()


def _cut(traffic: Traffic, shards: int) -> list[Part]:
    return parts(array("d", (call.at_s for call in traffic.calls())), shards)


def _lists(traffic: Traffic, pieces: Sequence[Part]) -> Iterator[tuple[Part, list[Recorded]]]:
    """Each part's calls, after those it warms up by. The traffic is read once."""
    kept, first = list[Recorded](), 0
    calls = traffic.calls()
    for piece in pieces:
        del kept[: max(piece.warm - first, 0)]
        first = max(first, piece.warm)
        kept += islice(calls, piece.end - first - len(kept))
        yield piece, list(kept)


def _sum(tallies: Sequence[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        total.plus(tally)
    return total


# in another process


def _told_by(queue: Any) -> None:
    global _told
    _told = queue


def _job(task: Task, folder: Path, piece: Part) -> Tally:
    calls = islice(task.traffic.calls(), piece.warm, piece.end)
    return run(router(load_folder(folder)), calls, task.lanes, task.seed, _told.put, piece)


def _far_job(texts: Mapping[str, str], calls: list[Recorded], lanes: list[Reality], seed: int, piece: Part) -> Tally:
    with tempfile.TemporaryDirectory() as name:
        for file, text in texts.items():
            (Path(name) / file).write_text(text, encoding="utf-8")
        return run(router(load_folder(Path(name))), calls, lanes, seed, part=piece)


def _texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.suffix in (".yaml", ".yml")}


# progress


@contextmanager
def _progress(each: int | None, what: str = "calls") -> Iterator[Callable[[int], None]]:
    """`each`: of one run, as far as it is known."""
    columns = (TextColumn("{task.completed:,.0f} " + what + " in two runs"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task: TaskID = progress.add_task("", total=None if each is None else 2 * each)
        yield lambda more: progress.advance(task, more)


def _watch(told: Any, jobs: Sequence[Future[Tally]], said: Callable[[int], None]) -> None:
    """Until all jobs are over, or one of them failed."""
    while not all(job.done() for job in jobs) and not any(job.done() and job.exception() for job in jobs):
        time.sleep(_LOOK_S)
        with suppress(Empty):
            while True:
                said(told.get_nowait())
