"""The same model on an NVIDIA GPU: bf16 weights, torch's own paged attention, a CUDA graph per batch size.

Not measured: it was written without a GPU. Its parts are tested on the CPU with a double of the attention kernel and with
graphs that run what they recorded; that the kernel takes these shapes is known from its checks on tensors without data.
Which page sizes a kernel takes is its own matter: where it refuses blocks of 16, its error says so at the first request.

Several GPUs are several processes (`--device cuda:0`, `cuda:1`, ...), each a backend of the gateway.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from inference.attention import Span
from inference.cache import NULL_BLOCK, Heads, KVCache
from inference.linear import Choice, Matrix, Product, RowGroups
from inference.model import Batch, Llama, places, rotary
from inference.weights import ModelConfig, Weights

SIZES = (1, 2, 4, 8, *range(16, 257, 16))
"""Rows of a step that decodes are padded to one of these, each with a graph of its own."""

Replay = Callable[[], Tensor]
Attend = Callable[..., Any]
"""`torch.nn.attention.varlen.varlen_attn`, or its double."""


class PagedCache(KVCache):
    """Keys and values as the kernel wants them: [layers, 2, block, offset, key heads, size]."""

    def __init__(
        self, layers: int, blocks: int, block_size: int, heads: Heads, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.dtype, self.block_size, self.heads, self.blocks = dtype, block_size, heads, blocks
        self.rows = torch.zeros(layers, 2, blocks + 1, block_size, heads.key, heads.size, dtype=dtype, device=device)
        self.scales = None
        self.layers = self.rows.unbind()

    def write(self, layer: int, slots: Tensor, rows: Tensor) -> None:
        """Store [rows, keys then values, size] at slots (block * block size + offset)."""
        pool, (_, heads, size) = self.layers[layer], rows.shape
        sides = rows.view(-1, 2, heads // 2, size).transpose(0, 1).to(self.dtype)
        pool.view(2, -1, heads // 2, size).index_copy_(1, slots, sides)


@dataclass(frozen=True, slots=True)
class Paging:
    """A step for the kernel: where each sequence's rows begin, how many keys it has, and in which blocks."""

    rows: int
    begins: Tensor
    used: Tensor
    tables: Tensor
    most_rows: int
    most_keys: int


class PagedAttention:
    """Attends spans over a paged cache in one call a layer."""

    def __init__(self, heads: Heads, attend: Attend = varlen_attn) -> None:
        self._heads, self._attend = heads, attend

    def plan(self, spans: Sequence[Span], cache: PagedCache) -> Paging:
        """What every layer of a step will do, worked out once. Spans follow one another from row 0."""
        device, most = cache.layers[0].device, max(span.position + span.count for span in spans)
        tables = np.full((len(spans), -(-most // cache.block_size)), NULL_BLOCK, np.int32)
        for row, span in zip(tables, spans, strict=True):
            row[: len(span.table)] = span.table[: len(row)]
        begins = np.cumsum([0, *(span.count for span in spans)], dtype=np.int32)
        used = np.array([span.position + span.count for span in spans], np.int32)
        there = [torch.from_numpy(array).to(device) for array in (begins, used, tables)]
        return Paging(int(begins[-1]), there[0], there[1], there[2], max(span.count for span in spans), most)

    def __call__(self, layer: int, q: Tensor, cache: PagedCache, plan: Paging) -> Tensor:
        """Scaled queries [rows, query heads, size] -> [rows, query heads * size]; rows outside all spans are zero."""
        keys, values = cache.layers[layer]
        out: Tensor = self._attend(
            q[: plan.rows].to(cache.dtype), keys, values, plan.begins, None, plan.most_rows, plan.most_keys, scale=1.0,
            window_size=(-1, 0), enable_gqa=self._heads.shared > 1, seqused_k=plan.used, block_table=plan.tables, num_splits=1,
        )  # fmt: skip
        return F.pad(out.flatten(1).float(), (0, 0, 0, len(q) - plan.rows))


def record(run: Replay) -> Replay:
    """A CUDA graph of what `run` does to tensors that stay where they are."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


class CudaLlama(Llama):
    """`Llama` on a device. Logits come back to the CPU, where they are sampled."""

    def __init__(
        self, config: ModelConfig, weights: Weights, device: torch.device, dtype: torch.dtype = torch.bfloat16,
        attend: Attend = varlen_attn, record: Callable[[Replay], Replay] = record,
    ) -> None:  # fmt: skip
        self.config, self.device, self._dtype, self._record = config, device, dtype, record
        self.heads = Heads(config.heads, config.kv_heads, config.head_size)
        self.choice = Choice(f"{dtype} on {device}", RowGroups(SIZES, exact=False), {str(dtype): f"on {device}, not checked"})
        self.attention = PagedAttention(self.heads, attend)  # type: ignore[assignment]
        self.kind, self.report, self.exact = self.choice.kind, self.choice.report, False
        self._rotary = rotary(config).to(device)
        there = _There(weights, device)
        self._layers = [self._layer(there, index) for index in range(config.layers)]
        embedding = there.matrix("token_embd.weight").dense
        head = there.matrix("output.weight").dense if weights.has("output.weight") else embedding
        self._embedding, self._norm = embedding.to(dtype), there.vector("output_norm.weight")
        self._head = self._product(head)
        self._graphs: dict[int, _Graph] = {}

    def cache(self, blocks: int, block_size: int, dtype: torch.dtype) -> KVCache:
        """A key-value cache on the device, in the weights' number form."""
        return PagedCache(self.config.layers, blocks, block_size, self.heads, self._dtype, self.device)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """As `Llama.forward`; a step in which every sequence gives one row is replayed from its graph."""
        assert isinstance(cache, PagedCache)
        rows = len(batch.spans)
        if rows > SIZES[-1] or any(span.count > 1 or not span.decode for span in batch.spans):
            return super().forward(batch, cache).cpu()
        size = self.groups.padded(rows)
        if size not in self._graphs:
            self._graphs[size] = _Graph(self, size, cache)
        return self._graphs[size](batch, cache)[:rows].cpu()

    def _linear(self, weights: Weights, *names: str) -> Product:
        return self._product(weights.matrix(*names).dense)

    def _product(self, dense: Tensor) -> Product:
        weight = dense.to(self._dtype)
        return lambda x: F.linear(x.to(self._dtype), weight).float()


class _Graph:
    """A step of `size` decoding rows over tensors that stay where they are; rows beyond the batch use the null block."""

    def __init__(self, model: CudaLlama, size: int, cache: PagedCache) -> None:
        pages, there = -(-model.config.context // cache.block_size), model.device
        self._ids, self._positions, self._slots = torch.zeros(3, size, dtype=torch.int64, device=there)
        begins = torch.arange(size + 1, dtype=torch.int32, device=there)
        tables = torch.zeros(size, pages, dtype=torch.int32, device=there)
        self._plan = Paging(size, begins, torch.ones_like(begins[1:]), tables, 1, pages * cache.block_size)

        def run() -> Tensor:
            rows = model._embedding[self._ids].float()
            return model._run(rows, self._positions, self._slots, self._plan, cache, slice(None))

        self._replay = model._record(run)

    def __call__(self, batch: Batch, cache: PagedCache) -> Tensor:
        rows, size = len(batch.spans), len(self._ids)
        positions, slots = places(batch.spans, size, cache.block_size)
        tables = np.zeros(self._plan.tables.shape, np.int32)
        for row, span in zip(tables, batch.spans, strict=False):
            row[: len(span.table)] = span.table[: len(row)]
        self._ids[:rows] = torch.tensor(batch.ids)
        for stays, new in ((self._positions, positions), (self._slots, slots), (self._plan.used, positions + 1)):
            stays.copy_(new)
        self._plan.tables.copy_(torch.from_numpy(tables))
        return self._replay()


class _There:
    """Weights whose tensors lie on a device."""

    def __init__(self, weights: Weights, device: torch.device) -> None:
        self._weights, self._device = weights, device
        self.has, self.quantized = weights.has, weights.quantized

    def matrix(self, *names: str) -> Matrix:
        return Matrix(self._weights.matrix(*names).dense.to(self._device))

    def vector(self, name: str) -> Tensor:
        return self._weights.vector(name).to(self._device)
