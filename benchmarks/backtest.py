"""How long a backtest takes and how much memory: generated traffic through `tollway policy backtest`, as a user runs it.

    python -m benchmarks.backtest [--calls 1000000] [--json]

Conversations of some turns, whose prompts grow and share their beginning, in three classes, on the example menu of lanes; OLD
and NEW differ in what waiting is worth. Wall time depends on what else the machine does; CPU seconds say what it takes.
"""
from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

CLASSES = ("interactive", "agent", "batch")
BLOCK_TOKENS = 512


def trace(count: int, seed: int = 1) -> Iterator[str]:
    """JSON lines in the order of time, 40 calls a second."""
    rng, at_s = random.Random(seed), 0.0
    open_: list[tuple[str, str, list[int]]] = []
    for number in range(count):
        at_s += rng.expovariate(40.0)
        if len(open_) < 400 or rng.random() < 0.15:
            open_.append((f"s{number}", rng.choice(CLASSES), [number * 64]))
        session, klass, blocks = open_[rng.randrange(len(open_))]
        blocks.append(blocks[-1] + 1)
        yield json.dumps({
            "at_s": round(at_s, 3), "prompt_tokens": len(blocks) * BLOCK_TOKENS + rng.randrange(BLOCK_TOKENS),
            "output_tokens": min(max(int(rng.lognormvariate(5.0, 0.8)), 1), 4_000), "blocks": blocks, "session": session,
            "wished_class": klass, "team": "t",
        })  # fmt: skip
        if len(blocks) > 24 or len(open_) > 800:
            open_.remove((session, klass, blocks))


def measure(count: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for which, value in (("old", 0.5), ("new", 5.0)):
            (folder / which).mkdir()
            policy = {"team": "t", "classes": {"agent": {"value_usd_per_hour": value, "total_deadline_ms": 90_000}}}
            (folder / which / "t.yaml").write_text(json.dumps(policy))
        with (folder / "trace.jsonl").open("w") as file:
            file.writelines(line + "\n" for line in trace(count))
        argv = ["policy", "backtest", "old", "new", "--trace", "trace.jsonl", "--json"]
        began = time.perf_counter()
        with (folder / "out").open("w") as out:
            process = subprocess.Popen([sys.executable, "-m", "gateway.cli", *argv], cwd=folder, stdout=out)
        rss_mib, cpu = 0.0, dict[int, float]()
        while process.poll() is None:
            time.sleep(0.2)
            rss_mib = max(rss_mib, _look(process.pid, cpu))
        wall_s, result = time.perf_counter() - began, json.loads((folder / "out").read_text())
        assert process.returncode == 0, process.returncode
        assert result["calls"] == count, result["calls"]
        return {
            "calls": count, "wall_s": round(wall_s, 1), "cpu_s": round(sum(cpu.values()), 1),
            "cpu_s_of_the_slower_run": round(max(cpu.values()), 1), "rss_mib": round(rss_mib),
        }  # fmt: skip


def _look(pid: int, cpu: dict[int, float]) -> float:
    """Memory of the process and its children now; notes the CPU seconds of each."""
    total = 0.0
    try:
        root = psutil.Process(pid)
        for one in (root, *root.children(recursive=True)):
            total += one.memory_info().rss / 2**20
            times = one.cpu_times()
            cpu[one.pid] = times.user + times.system
    except psutil.NoSuchProcess:
        pass
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    found = measure(given.calls)
    if given.json:
        print(json.dumps(found))
        return
    print(f"{found['calls']:,} calls under two policies: {found['wall_s']} s, {found['cpu_s']} CPU seconds "
          f"({found['cpu_s_of_the_slower_run']} of the slower run), {found['rss_mib']} MiB at most")  # fmt: skip


if __name__ == "__main__":
    main()
