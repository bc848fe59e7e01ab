"""C8, C12, C13, C14, C25, C26: what clients do to the front."""
from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
import struct
import time
from typing import Any

from benchmarks.contract import Reached, Scale, experiment
from benchmarks.contract.bench import Bench, Exchange, p99_ms, plain, run
from benchmarks.contract.load import Load, Offer

ADDRESSES = [f"127.0.1.{n}" for n in range(1, 5)]


@experiment("C8")
def hang_ups(scale: Scale) -> Reached:
    """Clients leave at random moments, by FIN and by RST."""
    return run(_hang_ups(int(scale.of(400, 10_000))))  # type: ignore[no-any-return]


async def _hang_ups(count: int) -> Reached:
    async with Bench.open() as bench:
        lags, began, left = list[float](), dict[str, asyncio.Event](), dict[str, float]()

        async def handler(exchange: Exchange) -> None:
            name = exchange.body["user"]
            began[name].set()
            if exchange.body["stream"]:
                exchange.tasks.add(asyncio.ensure_future(exchange.stream(400, 0.02)))
            await exchange.gone.wait()
            if name in left:
                lags.append(time.perf_counter() - left[name])

        bench.handler = handler

        async def one(n: int) -> None:
            name = f"call-{n}"
            began[name] = asyncio.Event()
            _, writer = await asyncio.open_connection("127.0.0.1", bench.port)
            writer.write(bench.request(user=name, stream=n % 2 == 0))
            await began[name].wait()
            await asyncio.sleep(random.random() * 0.05)
            if n % 3 == 0:
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                writer.close()
            left[name] = time.perf_counter()

        for start in range(0, count, 20):
            await asyncio.gather(*(one(n) for n in range(start, min(start + 20, count))))
        await asyncio.sleep(1.0)
        booked, held = await bench.attempts(), await bench.held_nanos()
        bench.handler = plain
        good = (await bench.call(bench.request())).status == 200
        p99, metered = p99_ms(lags), sum(booked.values())
        kept = p99 <= 250 and len(lags) == count and metered == count and held == 0 and good
        figure = f"P99 {p99:.0f} ms; {count - len(lags)} not closed; {metered} of {count} booked; held {held}"
        return Reached(figure, kept, f"{count} hang-ups")


@experiment("C12")
def slow_readers(scale: Scale) -> Reached:
    """Streams whose readers stop reading."""
    return run(_slow_readers(int(scale.of(300, 10_000))))  # type: ignore[no-any-return]


async def _slow_readers(count: int) -> Reached:
    async with Bench.open() as bench:
        async def handler(exchange: Exchange) -> None:
            if exchange.body.get("user") == "slow":
                await exchange.stream(100_000, 0.2)
            else:
                await plain(exchange)

        bench.handler = handler
        writers = []
        for n in range(count):
            place = (ADDRESSES[n % 4], 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", bench.port, local_addr=place, limit=1024)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(bench.request(user="slow", stream=True))
            writers.append(writer)
        while bench.seen < count:
            await asyncio.sleep(0.05)
        probes = await bench.rate(10, 4, lambda: bench.call(bench.request()))
        rss, p99 = bench.rss_mib(), p99_ms([one.took_s for one in probes])
        for writer in writers:
            writer.transport.abort()
        freed = await _until(lambda: bench.attempts(), lambda found: sum(found.values()) >= count + len(probes))
        held, good = await bench.held_nanos(), all(one.status == 200 for one in probes)
        kept = rss <= 512 and p99 <= 100 and freed and held == 0 and good
        figure = f"RSS {rss:.0f} MiB; probe P99 {p99:.0f} ms; {'all' if freed else 'NOT all'} freed, held {held}"
        return Reached(figure, kept, f"{count} streams")


async def _until(get: Any, good: Any, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if good(await get()):
            return True
        await asyncio.sleep(0.2)
    return False


@experiment("C13")
def slowloris(scale: Scale) -> Reached:
    """Connections that trickle their head, beside good calls."""
    return run(_slowloris(int(scale.of(500, 2_000)), scale.of(4, 30)))  # type: ignore[no-any-return]


async def _slowloris(count: int, seconds: float) -> Reached:
    async with Bench.open() as bench:
        await bench.rate(50, 2, lambda: bench.call(bench.request()))
        before = await bench.rate(50, seconds, lambda: bench.call(bench.request()))
        writers = []
        for n in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", bench.port, local_addr=(ADDRESSES[n % 4], 0))
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
            writers.append(writer)

        async def trickle() -> None:
            while True:
                for writer in writers:
                    with contextlib.suppress(OSError):
                        writer.write(b"x-a: b\r\n")
                await asyncio.sleep(1.0)

        trickling = asyncio.ensure_future(trickle())
        during = await bench.rate(50, seconds, lambda: bench.call(bench.request()))
        trickling.cancel()
        for writer in writers:
            writer.transport.abort()
        after = await bench.rate(50, seconds, lambda: bench.call(bench.request()))
        ratio = p99_ms([one.took_s for one in during]) / min(p99_ms([one.took_s for one in part]) for part in (before, after))
        bad = sum(one.status != 200 for one in during)
        figure = f"P99 {ratio:.1f}x baseline (the better of before and after); {bad} of {len(during)} failed"
        return Reached(figure, ratio <= 2 and not bad, f"{count} connections")


SHAPES = {
    "1 MB of letters": lambda: {"messages": [{"role": "user", "content": "a" * 1_000_000}]},
    "1 MB of spaces": lambda: {"messages": [{"role": "user", "content": " " * 1_000_000}]},
    "19,000 messages": lambda: {"messages": [{"role": "user", "content": "hi, you"}] * 19_000},
    "1,000 tools": lambda: {"tools": [{"type": "function", "function": {"name": f"t{n}"}} for n in range(1_000)]},
    "30 MB of words": lambda: {"messages": [{"role": "user", "content": "the toll road, " * 2_000_000}]},
    "30 MB of escapes": lambda: {"messages": [{"role": "user", "content": "\u0001\"" * 3_700_000}]},
    "8 MB of messages": lambda: {"messages": [{"role": "user", "content": "word " * 100}] * 15_000},
    "60 levels": lambda: {"metadata": json.loads("[" * 60 + "]" * 60)},
}  # fmt: skip


@experiment("C14")
def stalls(scale: Scale) -> Reached:
    """Bodies of all shapes up to the limits; the loop's stall is the longest wait for `/healthz` above its usual one."""
    return run(_stalls(int(scale.of(1, 10))))  # type: ignore[no-any-return]


async def _stalls(times: int) -> Reached:
    async with Bench.open() as bench:
        health = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        usual = max([(await bench.call(health)).took_s for _ in range(40)])
        worst, which = 0.0, ""
        for name, shape in SHAPES.items():
            request = bench.request(**shape())
            for _ in range(times):
                waiting, over = list[float](), asyncio.Event()

                async def look(waiting: list[float] = waiting, over: asyncio.Event = over) -> None:
                    while not over.is_set():
                        waiting.append((await bench.call(health)).took_s)
                        await asyncio.sleep(0.005)

                looking = asyncio.ensure_future(look())
                await asyncio.sleep(0.05)
                sent = asyncio.get_running_loop().run_in_executor(None, _send, bench.port, request)
                await sent
                over.set()
                await looking
                if max(waiting) > worst:
                    worst, which = max(waiting), name
        stall = max(worst - usual, 0.0) * 1e3
        figure = f"{stall:.0f} ms ({which}; idle {usual * 1e3:.0f} ms)"
        return Reached(figure, stall <= 100, f"{len(SHAPES)} shapes, {times} times")


def _send(port: int, request: bytes) -> None:
    """From a thread: writing tens of megabytes would hold the bench's own loop up."""
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.sendall(request)
        sock.recv(65_536)


async def at_once(exchange: Exchange) -> None:
    """Answers without a look at the request: the load generator must cost less than the gateway."""
    exchange.answer()


def _turn() -> list[dict[str, str]]:
    """35 kB, as a conversation has them."""
    return [{"role": "user", "content": f"{n} " + "the toll road " * 40} for n in range(60)]


@experiment("C25")
def overload(scale: Scale) -> Reached:
    """Twice and three times what was found to be the capacity, in two classes."""
    return run(_overload(scale.of(10, 60)))  # type: ignore[no-any-return]


async def _overload(seconds: float) -> Reached:
    async with Bench.open() as bench:
        bench.pin()
        bench.handler = at_once
        waits, patient = (bench.request(headers=klass, messages=_turn()) for klass in (b"", b"x-tollway-class: batch\r\n"))
        load = Load(bench.port)
        await load.connect(1_000, waits)
        await load.closed(16, 1.0, waits)
        found = await load.closed(16, seconds / 2, waits)
        capacity, usual = len(found) / (seconds / 2), p99_ms([one.took_s for one in found])
        figures, kept = [], True
        for times in (2, 3):
            per_s, cpu, began, busy = times * capacity / 2, time.process_time(), time.monotonic(), bench.cpu_s()
            classes = {"interactive": waits, "batch": patient}
            offers = [Offer(name, per_s, itertools.repeat(request)) for name, request in classes.items()]
            seen = await load.open(seconds, *offers)
            lasted_s = time.monotonic() - began
            cpu, busy = (time.process_time() - cpu) / lasted_s, (bench.cpu_s() - busy) / lasted_s
            good = sum(one.status == 200 for one in seen) / lasted_s / capacity
            refused = [one.took_s for one in seen if one.status == 503]
            interactive = p99_ms([one.took_s for one in seen if one.team == "interactive" and one.status == 200]) / usual
            lost = sum(one.status not in (200, 503) for one in seen)
            figures.append(
                f"{times}x: goodput {good:.0%}; {len(refused)} of {len(seen)} refused, P99 {p99_ms(refused):.0f} ms; "
                f"interactive P99 {interactive:.1f}x; {lost} neither (the load late by {load.late_s * 1e3:.0f} ms at worst); "
                f"of their cores: gateway {busy:.0%}, load and model server {cpu:.0%}"
            )
            kept &= good >= 0.9 and p99_ms(refused) <= 50 and interactive <= 2 and not lost
            await asyncio.sleep(1.0)
        figure = f"capacity {capacity:.0f}/s, P99 {usual:.0f} ms; " + "; ".join(figures)
        return Reached(figure, kept, f"{seconds:.0f} s each; 35 kB turns")


@experiment("C26")
def fairness(scale: Scale) -> Reached:
    """One team at twenty times what two others send; at twice the capacity, which is beyond the promise, the figure is told."""
    return run(_fairness(scale.of(6, 60)))  # type: ignore[no-any-return]


async def _fairness(seconds: float) -> Reached:
    async with Bench.open(teams=("good", "fine", "loud")) as bench:
        bench.pin()
        bench.handler = at_once
        requests = {team: bench.request(team, messages=_turn()) for team in bench.keys}
        load = Load(bench.port)
        await load.connect(1_000, requests["good"])
        await load.closed(16, 1.0, requests["good"])
        capacity = len(await load.closed(16, 2.0, requests["loud"])) / 2.0
        two = [Offer(team, 25, itertools.repeat(requests[team])) for team in ("good", "fine")]
        alone = p99_ms([one.took_s for one in await load.open(2 * seconds, *two)])
        figures, kept = [], True
        for name, per_s in (("20 times its share", 500.0), ("twice the capacity", 2 * capacity)):
            seen = await load.open(2 * seconds, *two, Offer("loud", per_s, itertools.repeat(requests["loud"])))
            beside, loud = ([one for one in seen if (one.team == "loud") is louder] for louder in (False, True))
            ratio = p99_ms([one.took_s for one in beside]) / alone
            success = sum(one.status == 200 for one in beside) / len(beside)
            refused = sum(one.status == 503 for one in loud) / len(loud)
            figures.append(f"{name}: others' P99 {ratio:.1f}x, success {success:.1%}, of the loud {refused:.0%} refused")
            kept &= per_s > 500 or (success >= 0.999 and ratio <= 1.5)
            await asyncio.sleep(1.0)
        figure = f"others alone P99 {alone:.1f} ms, capacity {capacity:.0f}/s; " + "; ".join(figures)
        return Reached(figure, kept, f"{2 * seconds:.0f} s each, 25, 25 and the loud team's calls/s of 35 kB")
