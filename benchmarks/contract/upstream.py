"""C9, C10, C11, C24: backends that fail and are slow, restarts, and the long run."""
from __future__ import annotations

import asyncio
import functools
import random
import signal
import time

from benchmarks.contract import Reached, Scale, experiment
from benchmarks.contract.bench import Bench, Exchange, Got, plain, run

_AHEAD_S, _PATIENCE_S = 0.5, 20.0


@experiment("C9")
def retries(scale: Scale) -> Reached:
    """Both backends fail always, then three times in ten."""
    return run(_retries(scale.of(6, 60), scale.of(60, 200)))  # type: ignore[no-any-return]


async def _retries(seconds: float, per_s: float) -> Reached:
    figures, kept = [], True
    for share in (1.0, 0.3):
        async with Bench.open(backends=2) as bench:
            async def handler(exchange: Exchange, share: float = share) -> None:
                if random.random() < share:
                    exchange.answer(503, b'{"error":{"message":"busy","type":"server_error"}}', b"retry-after: 0\r\n")
                else:
                    exchange.answer()

            bench.handler = handler
            got: list[Got] = await bench.rate(per_s, seconds, lambda: bench.call(bench.request()))
            booked = sum((await bench.attempts()).values())
            ratio = bench.seen / len(got)
            answered = sum(one.status == 200 for one in got) / len(got)
            figures.append(f"{share:.0%} failing: {ratio:.2f}x, {booked}/{bench.seen} booked, {answered:.0%} answered")
            kept &= ratio <= 1.1 + 3 / len(got) and booked == bench.seen
    return Reached("; ".join(figures), kept, f"{per_s:.0f}/s, {seconds:.0f} s each")


@experiment("C10")
def deadlines(scale: Scale) -> Reached:
    """Slow backends before clients with a time-out of their own, told by their library's header. An answer is there when the
    client's machine has it: when the client, which shares the cores, comes to it is no doing of the gateway's, and told beside.
    Of those that were late it is told whether the machine was: whether in their last second the gateway's loop and the clients,
    ready to run, waited longer for a core than half of the half second by which the gateway answers ahead."""
    return run(_deadlines(int(scale.of(60, 2_000)), (2.0,) if not scale.long else (2.0, 10.0, 60.0)))  # type: ignore[no-any-return]


async def _deadlines(count: int, timeouts_s: tuple[float, ...]) -> Reached:
    async with Bench.open(backends=2) as bench:
        async def handler(exchange: Exchange) -> None:
            limit = float(exchange.body["user"])
            await asyncio.sleep(random.uniform(0, 2 * limit))
            if random.random() < 0.3:
                exchange.answer(503, b"{}")
            else:
                exchange.answer()

        async def one(request: bytes, limit: float) -> tuple[float, float, float]:
            """Seconds beyond the time-out, how long in its last second the machine stood still for the gateway or us, and the
            seconds beyond the time-out when the client had read the answer."""
            stood = list[float]()

            def last_second(due: float) -> None:
                stood.append(asyncio.get_running_loop().time() - due - bench.waited_s())

            loop = asyncio.get_running_loop()
            due = loop.time() + limit - 1.0
            timer = loop.call_at(due, last_second, due)
            got = await bench.call(request, timeout_s=limit + _PATIENCE_S)
            timer.cancel()
            over_s = (got.waited_s if got.status else _PATIENCE_S + limit) - limit
            return over_s, stood[0] + bench.waited_s() if stood else 0.0, got.took_s - limit

        bench.handler = handler
        asked = list[tuple[float, float, float]]()
        for limit in timeouts_s:
            header = b"x-stainless-read-timeout: %d\r\n" % limit
            request = bench.request(headers=header, user=str(limit))
            asked += await bench.rate(20, count / 20, functools.partial(one, request, limit))
        late = [one for one in asked if one[0] > 0]
        figure = f"{len(asked) - len(late)} of {len(asked)} answered in time"
        if read_late := sum(read_over_s > 0 for *_, read_over_s in asked) - len(late):
            figure += f"; {read_late} more were read late by clients that were late themselves"
        if late:
            stood = sum(waited_s > _AHEAD_S / 2 for _, waited_s, _ in late)
            figure += f"; {stood} of the late stood still over {_AHEAD_S / 2} s at their end; latest by {max(late)[0]:.2f} s"
        return Reached(figure, len(late) <= 0.001 * len(asked), f"time-outs of {timeouts_s} s")


@experiment("C11")
def restarts(scale: Scale) -> Reached:
    """SIGTERM with open streams. (The roll of three replicas is `tests/flow/test_drain.py`.)"""
    return run(_restarts(int(scale.of(60, 200))))  # type: ignore[no-any-return]


async def _restarts(count: int) -> Reached:
    async with Bench.open(unready_s=1.0) as bench:
        async def handler(exchange: Exchange) -> None:
            await exchange.stream(60, 0.05)

        bench.handler = handler
        streams = [asyncio.ensure_future(bench.call(bench.request(stream=True))) for _ in range(count)]
        while bench.seen < count:
            await asyncio.sleep(0.02)
        bench.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        while (await bench.ask("GET", "/readyz")).status_code == 200:
            await asyncio.sleep(0.02)
        unready_s = time.monotonic() - began
        got = await asyncio.gather(*streams)
        cut = sum(not one.body.endswith(b"[DONE]\n\n") for one in got)
        figure = f"{cut} of {count} cut; unready after {unready_s:.2f} s"
        return Reached(figure, cut == 0 and unready_s <= 1, f"{count} open streams")


@experiment("C24")
def soak(scale: Scale) -> Reached:
    """Calls at a steady rate, one in twenty with a fault of some kind. What is loaded once (the tokenizer's tables when an
    answer is cut off, the statements of the roll-ups after 15 s) is there before it begins."""
    return run(_soak(scale.of(60, 1_800), scale.of(60, 200), scale.of(35, 300)))  # type: ignore[no-any-return]


async def _soak(seconds: float, per_s: float, warm_s: float) -> Reached:
    async with Bench.open() as bench:
        async def handler(exchange: Exchange) -> None:
            fault = random.random()
            if fault < 0.01:
                exchange.transport.abort()
            elif fault < 0.02:
                exchange.answer(500, b"{}")
            elif fault < 0.03:
                await exchange.stream(3, 0.001, ends=False)
                exchange.transport.abort()
            else:
                await plain(exchange)

        async def one() -> None:
            leaves = random.random() < 0.02
            await bench.call(bench.request(stream=random.random() < 0.5), timeout_s=0.01 if leaves else 30)

        bench.handler = handler
        cold_mib = bench.rss_mib()
        await bench.rate(per_s, warm_s, one)
        await asyncio.sleep(1.0)
        fds, sizes = bench.fds(), [(0.0, bench.rss_mib())]
        began = time.monotonic()
        for _ in range(20):
            await bench.rate(per_s, seconds / 20, one)
            sizes.append((time.monotonic() - began, bench.rss_mib()))
        await asyncio.sleep(1.0)
        slope, grown, held = _slope(sizes) * 60, bench.fds() - fds, await bench.held_nanos()
        kept = slope < 1 and abs(grown) <= 10 and held == 0
        warm = f"{cold_mib:.0f} MiB at the start, {sizes[0][1]:.0f} when warm"
        figure = f"RSS {slope:+.2f} MiB/min ({warm}); fds {grown:+d}; held {held}"
        return Reached(figure, kept, f"{seconds:.0f} s at {per_s:.0f}/s after {warm_s:.0f} s")


def _slope(points: list[tuple[float, float]]) -> float:
    """Least squares: y per x."""
    n, xs, ys = len(points), [x for x, _ in points], [y for _, y in points]
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x in xs)
