"""A model that runs in C (`step.c`): one call takes all rows of a step through all layers; weights stay as the file has them.

For Q4_1 files with a Q8_0 embedding and head, on x86-64 with AVX2. A row's bits depend on its position and on what it sees,
never on its company, a chunk's length or the threads. Where it cannot run (another file, another processor, no compiler)
`Unavailable` says why and torch runs the model.
"""

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.attention import Span
from inference.cache import Heads, KVCache
from inference.gguf import Quantized
from inference.model import Batch, rotary
from inference.native.library import Unavailable, library
from inference.weights import ModelConfig, Weights

__all__ = ["NativeLlama", "Unavailable"]

_LANES, _BLOCK, _MOST_SHARED = 8, 32, 16
_LINE, _ROOM = 64, 64 << 20
_FORMS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.int8: 3}
_PARTS = (("attn_q", "attn_k", "attn_v"), ("attn_output",), ("ffn_gate", "ffn_up"), ("ffn_down",))

Array = npt.NDArray[Any]


class _Matrix(ctypes.Structure):
    _fields_ = (("words", ctypes.c_void_p), ("scales", ctypes.c_void_p))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attn_norm", ctypes.c_void_p),
        ("ffn_norm", ctypes.c_void_p),
        *((name, _Matrix) for name in ("qkv", "out", "gate_up", "down")),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "width", "ffn", "heads", "kv_heads", "head_size", "vocabulary")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("layer", "norm", "turns")),
        ("embedding", _Matrix),
        ("head", _Matrix),
    )


class _Cache(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("block_size", "form")),
        *((name, ctypes.c_int64) for name in ("side", "layer")),
        *((name, ctypes.c_void_p) for name in ("rows", "scales")),
    )


class NativeLlama:
    """The compiled step with a model's weights, laid out for it."""

    kind, exact = "native", True

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        _check(config, weights)
        self._step = library().step
        self.config = config
        self.report = {"native": "exact, weights as the file has them"}
        self._rooms: list[Array] = []  # what the pointers point into; the last is filled up to `_used`
        self._used = 0
        self._turns = torch.view_as_real(rotary(config))
        self._layers = (_Layer * config.layers)(*(self._layer(weights, index) for index in range(config.layers)))
        embedding = self._matrix(weights, "token_embd.weight")
        self._model = _Model(
            config.layers, config.width, config.ffn, config.heads, config.kv_heads, config.head_size, config.vocabulary,
            config.eps, ctypes.addressof(self._layers), self._vector(weights, "output_norm.weight"), self._turns.data_ptr(),
            embedding, self._matrix(weights, "output.weight") if weights.has("output.weight") else embedding,
        )  # fmt: skip
        self._caches: WeakKeyDictionary[KVCache, _Cache] = WeakKeyDictionary()

    def cache(self, blocks: int, block_size: int, dtype: torch.dtype) -> KVCache:
        """A key-value cache that fits this model."""
        heads = Heads(self.config.heads, self.config.kv_heads, self.config.head_size)
        cache = KVCache(self.config.layers, blocks, block_size, heads, dtype)
        side = (blocks + 1) * block_size * heads.size
        pointers = (cache.rows.data_ptr(), 0 if cache.scales is None else cache.scales.data_ptr())
        self._caches[cache] = _Cache(block_size, _FORMS[dtype], side, 2 * heads.key * side, *pointers)
        return cache

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Compute all rows, store their keys and values, and give the logits of the wanted rows in float32."""
        spans, tables = _flat(batch.spans)
        ids, wanted = array("i", batch.ids), array("i", batch.wanted)
        logits = torch.empty(len(wanted), self.config.vocabulary)
        failed = self._step(
            ctypes.byref(self._model), ctypes.byref(self._caches[cache]), torch.get_num_threads(), len(batch.spans), _at(spans),
            _at(tables), len(ids), _at(ids), len(wanted), _at(wanted), ctypes.c_void_p(logits.data_ptr()),
        )  # fmt: skip
        if failed:
            raise MemoryError("no memory for a step")
        return logits

    def _layer(self, weights: Weights, index: int) -> _Layer:
        name = f"blk.{index}.{{}}.weight".format
        return _Layer(
            self._vector(weights, name("attn_norm")),
            self._vector(weights, name("ffn_norm")),
            *(self._matrix(weights, *map(name, parts)) for parts in _PARTS),
        )

    def _vector(self, weights: Weights, name: str) -> int:
        return self._keep(weights.vector(name).numpy())

    def _matrix(self, weights: Weights, *names: str) -> _Matrix:
        blocks, outside = weights.quantized(*names), names[0] in ("token_embd.weight", "output.weight")
        if blocks is None or (blocks.m is None) != outside:
            raise Unavailable(f"{names[0]} is not {'Q8_0' if outside else 'Q4_1'}")
        words, scales = _pack(blocks)
        return _Matrix(self._keep(words), self._keep(scales))

    def _keep(self, array: Array) -> int:
        """A copy that begins with a cache line; its address. Copies lie side by side in few large arrays, for which numpy asks
        the system for huge pages: with small ones a step takes up to a tenth longer."""
        size = -(-array.nbytes // _LINE) * _LINE
        if not self._rooms or self._used + size > len(self._rooms[-1]):
            self._rooms.append(np.empty(max(_ROOM, size) + _LINE, np.uint8))
            self._used = -self._rooms[-1].ctypes.data % _LINE
        room, start = self._rooms[-1], self._used
        room[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        self._used += size
        return room.ctypes.data + start


def _check(config: ModelConfig, weights: Weights) -> None:
    """The shapes that the C code is written for."""
    if weights.has("blk.0.attn_q.bias") or weights.has("blk.0.attn_q_norm.weight"):
        raise Unavailable("the model has biases or norms of heads")
    if config.width % _BLOCK or config.ffn % _BLOCK or config.head_size % _BLOCK or config.vocabulary % _LANES:
        raise Unavailable(f"widths are not multiples of {_BLOCK}")
    if config.heads // config.kv_heads > _MOST_SHARED:
        raise Unavailable(f"more than {_MOST_SHARED} query heads share a key head")


def _flat(spans: Sequence[Span]) -> tuple["array[int]", "array[int]"]:
    """Spans as step.c reads them, and their tables one after the other."""
    flat, tables = array("i"), array("i")
    for span in spans:
        flat.extend((span.row, span.count, span.position, span.decode, len(tables)))
        tables.extend(span.table)
    return flat, tables


def _at(numbers: "array[int]") -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


def _pack(blocks: Quantized) -> tuple[Array, Array]:
    """Weights as product.h reads them: eight output rows side by side."""
    rows, columns = blocks.q.shape
    scales = [
        side.reshape(-1, _LANES, columns // _BLOCK).transpose(0, 2, 1) for side in (blocks.d, blocks.m) if side is not None
    ]
    lanes = blocks.q.reshape(rows // _LANES, _LANES, columns // 8, 4, 2)
    if blocks.m is None:
        words = lanes.transpose(0, 2, 3, 1, 4)
    else:
        four = lanes.transpose(3, 0, 2, 1, 4).astype(np.uint16)
        words = four[0] | four[1] << 4 | four[2] << 8 | four[3] << 12
    return np.ascontiguousarray(words), np.ascontiguousarray(np.stack(scales, 2), np.float16)
