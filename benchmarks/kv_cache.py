"""`python -m benchmarks.kv_cache`: what the engine's cache costs in each number form, and what its spill saves.

Per form: the largest difference of logits to fp32 over recorded text, how often the likeliest token stays, bytes a token.
Then the spill: seconds to compute a prefix, to find it in the cache, to read it back from disk. Then memory: what the process
has beside weights and cache when it serves, against the 350 MiB that it may have.
"""
from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psutil
import torch

from inference.ask import Ask
from inference.attention import Span
from inference.blocks import BLOCK
from inference.cache import KV_FORMS
from inference.engine import Engine
from inference.gguf import read_gguf
from inference.loading import load_model
from inference.model import Batch, Model
from inference.server import resident_bytes
from inference.spill import DiskStore
from inference.storage import Storage
from inference.tokenizer import Tokenizer
from inference.weights import GGUFWeights, bundled_model, read_config

TEXTS = ("docs/architecture.md", "docs/engine.md", "gateway/pipeline.py", "LICENSE")
MOST_BESIDE_MIB = 350
_CHUNK = 128


@click.command(help=__doc__)
@click.option("--tokens", default=1024, show_default=True, help="of each text")
@click.option("--prefix", default=1024, show_default=True, help="tokens of the prefix that is spilled")
@click.option("--threads", default=2, show_default=True)
@click.option("--only", type=click.Choice(["forms", "spill", "memory"]), help="one part")
@click.option("--json", "as_json", is_flag=True)
def main(tokens: int, prefix: int, threads: int, only: str | None, as_json: bool) -> None:
    """Prints a table, or JSON."""
    torch.set_num_threads(threads)
    file = read_gguf(bundled_model())
    words, before = Tokenizer(file.meta), resident_bytes()
    model = load_model(read_config(file), GGUFWeights(file))
    weights_mib = (resident_bytes() - before) / 2**20
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "forms": lambda: _forms(model, words, tokens),
        "spill": lambda: _spill(model, words, prefix, threads),
        "memory": lambda: _memory(model, words, weights_mib, threads),
    }
    found = {"weights": model.kind} | {name: part() for name, part in parts.items() if only in (None, name)}
    print(json.dumps(found, indent=1) if as_json else _table(found))


def _forms(model: Model, words: Tokenizer, most: int) -> dict[str, dict[str, float]]:
    texts = [words.encode(Path(name).read_text(encoding="utf-8"))[:most] for name in TEXTS if Path(name).is_file()]
    exact = [_logits(model, ids, "fp32") for ids in texts]
    told = {}
    for form in KV_FORMS:
        largest, typical, kept, rows = 0.0, [], 0, 0
        for ids, want in zip(texts, exact, strict=True):
            got = _logits(model, ids, form)
            largest = max(largest, float((got - want).abs().max()))
            typical.append(float((got - want).abs().mean()))
            kept += int((got.argmax(-1) == want.argmax(-1)).sum())
            rows += len(ids)
        cache = model.cache(1, BLOCK, KV_FORMS[form])
        told[form] = {
            "bytes_per_token": cache.bytes_per_token, "largest_logit_difference": round(largest, 4),
            "mean_logit_difference": round(statistics.mean(typical), 5), "same_argmax": round(kept / rows, 4),
            "positions": rows,
        }  # fmt: skip
    return told


def _logits(model: Model, ids: list[int], form: str) -> torch.Tensor:
    """Of every position, the text given (not what the model would say), in chunks as the engine computes a prompt."""
    table = list(range(1, -(-len(ids) // BLOCK) + 1))
    cache, found = model.cache(len(table), BLOCK, KV_FORMS[form]), []
    with torch.inference_mode():
        for start in range(0, len(ids), _CHUNK):
            count = min(_CHUNK, len(ids) - start)
            spans = [Span(0, count, start, table, decode=False)]
            found.append(model.forward(Batch(ids[start : start + count], spans, list(range(count))), cache))
    return torch.cat(found)


def _spill(model: Model, words: Tokenizer, tokens: int, threads: int) -> dict[str, float]:
    """First token of one prompt: computed, found in the cache, read back after others had pushed it out."""
    engine = Engine(model, words, Storage(model, tokens + 64, spill_mib=256), threads=threads)
    engine.start()
    chance = torch.Generator().manual_seed(1)
    prompts = [torch.randint(100, 20_000, (tokens,), generator=chance).tolist() for _ in range(3)]
    try:
        computed = _first_token_s(engine, prompts[0])
        cached = _first_token_s(engine, prompts[0])
        for other in prompts[1:]:
            _first_token_s(engine, other)
        assert engine.storage.spill is not None
        before = engine.storage.spill.restored
        back = _first_token_s(engine, prompts[0])
        blocks = engine.storage.spill.restored - before
    finally:
        engine.stop()
    write_ms, read_ms = _moves_ms(engine)
    return {
        "prefix_tokens": tokens, "blocks_read_back": blocks, "computed_s": round(computed, 4), "cached_s": round(cached, 4),
        "read_back_s": round(back, 4), "read_back_of_computed": round(back / computed, 4),
        "write_ms_a_block": round(write_ms, 3), "read_ms_a_block": round(read_ms, 3),
    }  # fmt: skip


def _moves_ms(engine: Engine, blocks: int = 200) -> tuple[float, float]:
    """Milliseconds to write a block of the cache to the store and to read it back."""
    cache, took = engine.storage.cache, [0.0, 0.0]
    store = DiskStore(blocks, cache.block_bytes)
    for slot in range(blocks):
        start = time.perf_counter()
        store.save(slot, cache.read_block(1 + slot % cache.blocks))
        took[0] += time.perf_counter() - start
    for slot in range(blocks):
        start = time.perf_counter()
        cache.write_block(1, store.load(slot))
        took[1] += time.perf_counter() - start
    return took[0] / blocks * 1e3, took[1] / blocks * 1e3


def _memory(model: Model, words: Tokenizer, weights_mib: float, threads: int) -> dict[str, float]:
    engine = Engine(model, words, Storage(model, 2_048), threads=threads)  # which these prompts fill
    engine.start()
    try:
        for n in range(6):
            _first_token_s(engine, [100 + n] * 500, most=4)
        memory, pool = psutil.Process().memory_info(), engine.storage.bytes / 2**20
        resident = (memory.rss - getattr(memory, "shared", 0)) / 2**20  # files, as the mapped weights, are the system's to drop
    finally:
        engine.stop()
    return {
        "resident_mib": round(resident), "weights_mib": round(weights_mib), "pool_mib": round(pool),
        "beside_mib": round(resident - weights_mib - pool), "may_be_mib": MOST_BESIDE_MIB,
    }  # fmt: skip


def _first_token_s(engine: Engine, prompt: list[int], most: int = 1) -> float:
    async def ask() -> None:
        async for _ in engine.submit(Ask(prompt=prompt, most=most, ignore_eos=True), "x"):
            pass

    start = time.perf_counter()
    asyncio.run(ask())
    return time.perf_counter() - start


def _table(found: dict[str, Any]) -> str:
    lines = [f"weights {found['weights']}"]
    if "forms" in found:
        lines.append(f"{'cache':6} {'bytes/token':>12} {'largest':>9} {'mean':>9} {'argmax kept':>12}")
    for form, told in found.get("forms", {}).items():
        lines.append(
            f"{form:6} {told['bytes_per_token']:12} {told['largest_logit_difference']:9} {told['mean_logit_difference']:9} "
            f"{told['same_argmax']:12.2%}"
        )
    if spill := found.get("spill"):
        lines.append(
            f"spill: {spill['prefix_tokens']} tokens computed {spill['computed_s']} s, cached {spill['cached_s']} s, read back "
            f"{spill['read_back_s']} s ({spill['read_back_of_computed']:.1%} of computing); a block is written in "
            f"{spill['write_ms_a_block']} ms, read in {spill['read_ms_a_block']} ms"
        )
    if memory := found.get("memory"):
        lines.append(
            f"memory: {memory['resident_mib']} MiB = weights {memory['weights_mib']} + cache {memory['pool_mib']} + "
            f"{memory['beside_mib']} (may be {memory['may_be_mib']})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
