"""The llama forward pass in torch, over one flat list of tokens from any number of sequences.

All rows share every matrix product, padded to a count that keeps their bits independent of each other (see `linear`); only
attention looks at them apart. Padding rows write to the null block. `native` does the same in C where it can.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from inference.attention import Attention, Span
from inference.cache import Heads, KVCache
from inference.linear import Choice, Linear, Product, RowGroups, choose
from inference.weights import ModelConfig, Weights


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: token ids, the spans they belong to, and the rows whose logits matter.

    Spans that decode come first, and all their rows matter.
    """

    ids: list[int]
    spans: list[Span]
    wanted: list[int]


class Model(Protocol):
    """What runs a batch: `kind` names its numbers, `exact` says that company never changes a row's bits, `report` why."""

    config: ModelConfig
    kind: str
    exact: bool
    report: dict[str, str]

    def cache(self, blocks: int, block_size: int, dtype: torch.dtype) -> KVCache:
        """A key-value cache that fits this model."""

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Compute all rows, store their keys and values, and give the logits of the wanted rows in float32."""


@dataclass(frozen=True, slots=True)
class _Layer:
    attn_norm: Tensor
    qkv: Product
    bias: Tensor | None
    head_norm: Tensor | None
    out: Product
    ffn_norm: Tensor
    gate_up: Product
    down: Product


class Llama:
    """Weights in the chosen kind, rotary tables and attention; `exact` says whether company changes a row's bits."""

    device = torch.device("cpu")

    def __init__(self, config: ModelConfig, weights: Weights, kind: str = "auto") -> None:
        self.config = config
        self.heads = Heads(config.heads, config.kv_heads, config.head_size)
        self.choice = _choose(weights, kind)
        self.kind, self.report = self.choice.kind, self.choice.report
        self.attention = Attention(self.heads, config.context)
        self.exact = self.choice.groups.exact and self.attention.exact
        self._rotary = rotary(config)
        self._layers = [self._layer(weights, index) for index in range(config.layers)]
        embedding = weights.matrix("token_embd.weight")
        self._embedding = embedding.dense if self.kind == "fp32" else embedding.dense.half()
        self._norm = weights.vector("output_norm.weight")
        head = weights.matrix("output.weight") if weights.has("output.weight") else embedding
        self._head: Product = Linear(head, self.kind, self.groups)

    @property
    def groups(self) -> RowGroups:
        """The row counts to pad a batch to."""
        return self.choice.groups

    def cache(self, blocks: int, block_size: int, dtype: torch.dtype) -> KVCache:
        """A key-value cache that fits this model."""
        return KVCache(self.config.layers, blocks, block_size, self.heads, dtype)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Compute all rows, store their keys and values, and give the logits of the wanted rows in float32."""
        padding = [0] * (self.groups.padded(len(batch.ids)) - len(batch.ids))
        x = self._embed(batch.ids + padding)
        positions, slots = (at.to(self.device) for at in places(batch.spans, len(x), cache.block_size))
        return self._run(x, positions, slots, self.attention.plan(batch.spans, cache), cache, batch.wanted)

    def _run(self, x: Tensor, positions: Tensor, slots: Tensor, plan: Any, cache: KVCache, wanted: list[int] | slice) -> Tensor:
        eps, width, heads = self.config.eps, (self.config.width,), self.heads
        turned, turns = heads.query + heads.key, self._turns(positions)
        for index, layer in enumerate(self._layers):
            rows = layer.qkv(F.rms_norm(x, width, layer.attn_norm, eps))
            if layer.bias is not None:
                rows += layer.bias
            rows = rows.view(len(x), -1, heads.size)
            if layer.head_norm is not None:
                rows[:, :turned] = F.rms_norm(rows[:, :turned], (heads.size,), None, eps) * layer.head_norm
            torch.view_as_complex(rows[:, :turned].view(len(x), turned, heads.size // 2, 2)).mul_(turns)
            cache.write(index, slots, rows[:, heads.query :])
            x += layer.out(self.attention(index, rows[:, : heads.query], cache, plan))
            gate, up = layer.gate_up(F.rms_norm(x, width, layer.ffn_norm, eps)).chunk(2, -1)
            x += layer.down(F.silu(gate).mul_(up))
        return self._logits(x[wanted])

    def _logits(self, x: Tensor) -> Tensor:
        """Final norm and head for some rows."""
        rows = x.shape[0]
        if not rows:
            return x.new_empty(0, self.config.vocabulary)
        x = F.pad(x, (0, 0, 0, self.groups.padded(rows) - rows))
        return self._head(F.rms_norm(x, (self.config.width,), self._norm, self.config.eps))[:rows]

    def _embed(self, ids: list[int]) -> Tensor:
        return self._embedding[torch.tensor(ids, device=self.device)].float()

    def _turns(self, positions: Tensor) -> Tensor:
        """What to multiply queries and keys with, as complex pairs: the rotation, and for queries the scale as well."""
        heads = self.heads
        turns = self._rotary[positions][:, None].repeat(1, heads.query + heads.key, 1)
        turns[:, : heads.query] *= heads.size**-0.5
        return turns

    def _layer(self, weights: Weights, index: int) -> _Layer:
        def name(part: str) -> str:
            return f"blk.{index}.{part}.weight"

        return _Layer(
            attn_norm=weights.vector(name("attn_norm")),
            qkv=self._linear(weights, name("attn_q"), name("attn_k"), name("attn_v")),
            bias=self._bias(weights, index),
            head_norm=self._head_norm(weights, name("attn_q_norm"), name("attn_k_norm")),
            out=self._linear(weights, name("attn_output")),
            ffn_norm=weights.vector(name("ffn_norm")),
            gate_up=self._linear(weights, name("ffn_gate"), name("ffn_up")),
            down=self._linear(weights, name("ffn_down")),
        )

    def _bias(self, weights: Weights, index: int) -> Tensor | None:
        names = [f"blk.{index}.attn_{part}.bias" for part in "qkv"]
        return torch.cat([weights.vector(name) for name in names]) if weights.has(names[0]) else None

    def _head_norm(self, weights: Weights, q: str, k: str) -> Tensor | None:
        """Norm weights of every query and key head, [heads, size]."""
        if not weights.has(q):
            return None
        return torch.cat((weights.vector(q).expand(self.heads.query, -1), weights.vector(k).expand(self.heads.key, -1)))

    def _linear(self, weights: Weights, *names: str) -> Product:
        return Linear(weights.matrix(*names), self.kind, self.groups)


def _choose(weights: Weights, kind: str) -> Choice:
    """Check the kinds on the first layer's matrices and on a slice of the head's width."""
    samples = [
        weights.matrix("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"),
        weights.matrix("blk.0.attn_output.weight"),
        weights.matrix("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"),
        weights.matrix("blk.0.ffn_down.weight"),
    ]
    return choose(kind, samples)


def places(spans: Sequence[Span], rows: int, block_size: int) -> tuple[Tensor, Tensor]:
    """Each row's position, and the cache slot it writes; what belongs to no span goes to the null block."""
    positions, slots = np.zeros((2, rows), np.int64)
    for span in spans:
        at = np.arange(span.position, span.position + span.count)
        positions[span.row : span.row + span.count] = at
        slots[span.row : span.row + span.count] = np.array(span.table)[at // block_size] * block_size + at % block_size
    return torch.from_numpy(positions), torch.from_numpy(slots)


def rotary(config: ModelConfig) -> Tensor:
    """A complex number of length 1 for every position and pair, [context, half a head], computed in float64."""
    half = config.head_size // 2
    speeds = config.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    if config.rope is not None:
        speeds = config.rope.apply(speeds)
    angles = torch.arange(config.context, dtype=torch.float64)[:, None] * speeds
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
