"""CPU that normalizing and chaining cost a call, and the bytes that the prefix index keeps.

    python -m benchmarks.normalize [--json]

Each figure is the best of several rounds in one process, in microseconds; `json` is what decoding the same body costs, for
scale. Requests repeat as a client's turns do: all of it is known. `new` is reading it, and `unseen` normalizing it, where none
of it was seen before: tools, system prompt of 500 lines (one in five with numbers) and messages new in each request.
"""
from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

import click
import orjson
from rich.console import Console
from rich.table import Table

from gateway import dialects
from gateway.core.call import Sketch
from gateway.core.part import Part
from gateway.dialects import blocks
from gateway.dialects.parts import Conversation, conversation
from gateway.normalize import LEVELS, Memory, View, normalize
from gateway.prefix.chain import chain
from gateway.prefix.index import PrefixIndex

_ROUNDS, _ROUND_S = 7, 0.05
_ENTRIES = 200_000


@dataclass(frozen=True)
class Figures:
    """Microseconds of CPU a call."""

    shape: str
    bytes: int
    level: str
    new_us: float
    """Reading it where nothing of it was seen before."""
    unseen_us: float
    """Normalizing first turns of about that size whose tools, system prompt and messages are new each time."""
    read_us: float
    normalize_us: float
    chain_us: float
    predict_us: float
    json_us: float

    @property
    def total_us(self) -> float:
        return self.read_us + self.normalize_us + self.chain_us + self.predict_us


def _request(messages: int, tools: int, size: int) -> bytes:
    """A conversation with a clock in its system prompt; the first turn, so that nothing is exempt."""
    rules = "".join(f"Rule {n}: keep to the manual and say what you do.\n" for n in range(40)) + "Current time: 10:05\n"
    said = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "text " * size} for n in range(messages)]
    return json.dumps({
        "model": "m",
        "tools": [{"type": "function", "function": {"name": f"t{n}", "description": "d" * 1200}} for n in range(tools)],
        "messages": [*([{"role": "system", "content": rules}] if tools else []), *said],
    }).encode()  # fmt: skip


SHAPES = {"200-byte call": _request(1, 0, 26), "120 kB turn": _request(61, 20, 300), "1 MB turn": _request(401, 40, 490)}
_WORDS = (
    "always", "read", "write", "tools", "files", "answer", "user", "path", "should", "never", "error", "result", "when",
    "before", "list", "value", "string", "object",
)  # fmt: skip
_SYSTEM_LINES, _UNSEEN = 500, 12


def _unseen(size: int, rng: random.Random) -> bytes:
    """A first turn of which nothing was seen before; without room for a system prompt and tools only the message is."""

    def words(many: int) -> str:
        return " ".join(rng.choices(_WORDS, k=many))

    rules = "".join([
        f"{words(8)} {rng.randrange(1000)} {words(2)}.\n" if rng.random() < 0.2 else f"- {words(10)}.\n"
        for _ in range(_SYSTEM_LINES)
    ])  # fmt: skip
    tools = [{"type": "function", "function": {"name": f"t{n}", "description": words(200)}} for n in range(20)]
    around = {"tools": tools, "messages": [{"role": "system", "content": f"{rules}Current time: {rng.randrange(24):02}:05\n"}]}
    body = around if size > len(json.dumps(around)) else {"messages": []}
    said = words(max(size - len(json.dumps(body)), 200) // 7)
    return json.dumps({"model": "m", **body, "messages": [*body["messages"], {"role": "user", "content": said}]}).encode()


def _unseen_us(size: int, level: str) -> float:
    """The least of several, each for an app that has seen others like it."""
    rng, memory, spent = random.Random(size), Memory(), []
    for _ in range(_UNSEEN):
        body = _unseen(size, rng)
        sketch = dialects.read("openai_chat", body)
        view = _view(body, sketch, conversation("team", "m", body, sketch.parts), level)
        began = time.process_time()
        normalize(memory, view)
        spent.append(time.process_time() - began)
    return min(spent) * 1e6


def _view(body: bytes, sketch: Sketch, talk: Conversation, level: str) -> View:
    return View(
        domain="team", level=level, dialect="openai_chat", model="m", body=body, spans=sketch.spans,
        order=dialects.order("openai_chat"), parts=sketch.parts, talk=talk,
    )  # fmt: skip


def _best_us(work: Callable[[], object]) -> float:
    """CPU of one call of `work`: the best mean of several rounds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began, times = time.process_time(), 0
        while (spent := time.process_time() - began) < _ROUND_S:
            work()
            times += 1
        best = min(best, spent / times)
    return best * 1e6


def measure(shape: str, level: str) -> Figures:
    body = SHAPES[shape]

    def read() -> tuple[Sketch, Conversation]:
        sketch = dialects.read("openai_chat", body)
        return sketch, conversation("team", "m", body, sketch.parts)

    def read_new() -> None:
        blocks.KNOWN.clear()
        read()

    sketch, talk = read()
    memory, index = Memory(), PrefixIndex()
    view = _view(body, sketch, talk, level)
    links = chain("team", "m", sketch.parts, talk.id)
    index.learn("team", "pool", links, len(body) // 4, 0, 300)
    return Figures(
        shape, len(body), level,
        new_us=_best_us(read_new),
        unseen_us=_unseen_us(len(body), level),
        read_us=_best_us(read),
        normalize_us=_best_us(lambda: normalize(memory, view)),
        chain_us=_best_us(lambda: chain("team", "m", sketch.parts, talk.id)),
        predict_us=_best_us(lambda: index.predict("team", "pool", links, 1)),
        json_us=_best_us(lambda: orjson.loads(body)),
    )  # fmt: skip


def bytes_an_entry() -> float:
    """Memory that the index really takes, by the allocator's account, when it has just grown."""
    part = Part(0, 16, "messages", 0, blocks.fresh(b"x" * 16))
    tracemalloc.start()
    index = PrefixIndex(1 << 40)
    for n in range(_ENTRIES):
        index.learn("team", "pool", chain(str(n), "m", [part]), 100_000, 1_800_000_000_000_000, 300)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return taken / len(index)


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def main(as_json: bool) -> None:
    found = [measure(shape, level) for shape in SHAPES for level in LEVELS[1:]]
    each = bytes_an_entry()
    if as_json:
        rows = [{**asdict(one), "total_us": one.total_us} for one in found]
        click.echo(json.dumps({"calls": rows, "index_bytes_an_entry": each}, indent=2))
        return
    names = [field.name for field in fields(Figures) if field.name.endswith("_us")] + ["total_us"]
    table = Table("call", "bytes", "level", *[name.replace("_", " ") for name in names])
    for one in found:
        table.add_row(one.shape, f"{one.bytes:,}", one.level, *[f"{getattr(one, name):,.0f}" for name in names])
    Console(width=140).print(table)
    click.echo(f"index: {each:.0f} bytes an entry")


if __name__ == "__main__":
    main()
