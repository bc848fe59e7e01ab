"""The decode step in C (`decode.c`), compiled on the machine that runs it, kept in the user's cache.

One call takes the newest tokens of all sequences through all layers: nothing is dispatched in between, so a step costs
little more than reading the weights once. It does what `Llama.forward` does, for Q4_1 files with a Q8_0 head on x86-64
with AVX2. Where it cannot (another file, another processor, no compiler) `Unavailable` says why and torch decodes.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from inference.attention import Span
from inference.cache import KVCache
from inference.gguf import Quantized
from inference.weights import ModelConfig, Weights

_SOURCE = Path(__file__).with_name("decode.c")
_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-pthread", "-shared", "-fPIC")
_LANES, _BLOCK, _COMPILE_S = 8, 32, 120
_FORMS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_NEEDED = {"avx2", "fma", "f16c"}

Array = npt.NDArray[Any]


class Unavailable(RuntimeError):
    """No native step here; the text says why."""


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
        ("head", _Matrix),
    )


class _Cache(ctypes.Structure):
    _fields_ = (
        ("block_size", ctypes.c_int32),
        ("form", ctypes.c_int32),
        ("side", ctypes.c_int64),
        ("layer", ctypes.c_void_p),
    )


class NativeStep:
    """The compiled step with a model's weights, laid out for it. `turns`: (cos, sin) by position and pair."""

    def __init__(self, config: ModelConfig, weights: Weights, turns: Tensor) -> None:
        _check(config, weights)
        self._step = _library().step
        self._config = config
        self._kept: list[Array] = []  # what the pointers point to
        self._turns = turns
        layers = (_Layer * config.layers)(*(self._layer(weights, index) for index in range(config.layers)))
        self._layers = layers
        self._model = _Model(
            config.layers, config.width, config.ffn, config.heads, config.kv_heads, config.head_size, config.vocabulary,
            config.eps, ctypes.addressof(layers), self._vector(weights, "output_norm.weight"), turns.data_ptr(),
            self._matrix(weights, _head(weights)),
        )  # fmt: skip

    def takes(self, cache: KVCache) -> bool:
        """Whether it can read and write this cache."""
        return cache.dtype in _FORMS

    def decode(self, x: Tensor, spans: Sequence[Span], cache: KVCache) -> Tensor:
        """Embedded rows [rows, width] of decoding spans, in their order: stores keys and values, gives all logits."""
        tables = np.zeros((len(x), max(len(span.table) for span in spans)), np.int32)
        positions = np.empty(len(x), np.int32)
        row = 0
        for span in spans:
            tables[row : row + span.count, : len(span.table)] = span.table
            positions[row : row + span.count] = range(span.position, span.position + span.count)
            row += span.count
        layers = (ctypes.c_void_p * self._config.layers)(*(layer.data_ptr() for layer in cache.layers))
        side = (cache.blocks + 1) * cache.block_size * self._config.head_size
        pool = _Cache(cache.block_size, _FORMS[cache.dtype], side, ctypes.addressof(layers))
        return self._run(0, x, positions, tables, pool)

    def head(self, x: Tensor) -> Tensor:
        """Rows [rows, width] that went through all layers -> logits: the final norm and the head."""
        nowhere = np.zeros((len(x), 1), np.int32)
        return self._run(self._config.layers, x.clone(), nowhere, nowhere, _Cache())

    def _run(self, first: int, x: Tensor, positions: Array, tables: Array, pool: _Cache) -> Tensor:
        logits = torch.empty(len(x), self._config.vocabulary)
        failed = self._step(
            ctypes.byref(self._model), ctypes.byref(pool), torch.get_num_threads(), first, len(x),
            ctypes.c_void_p(x.data_ptr()), positions.ctypes, tables.ctypes, tables.shape[1], ctypes.c_void_p(logits.data_ptr()),
        )  # fmt: skip
        if failed:
            raise MemoryError("no memory for a decode step")
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
        blocks = weights.quantized(*names)
        if blocks is None or (blocks.m is None) != (names[0] == _head(weights)):
            raise Unavailable(f"{names[0]} is not {'Q8_0' if names[0] == _head(weights) else 'Q4_1'}")
        words, scales = _pack(blocks)
        return _Matrix(self._keep(words), self._keep(scales))

    def _keep(self, array: Array) -> int:
        """A copy that begins with a cache line; its address."""
        room = np.empty(array.nbytes + 64, np.uint8)
        start = -room.ctypes.data % 64
        room[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        self._kept.append(room)
        return room.ctypes.data + start


_PARTS = (("attn_q", "attn_k", "attn_v"), ("attn_output",), ("ffn_gate", "ffn_up"), ("ffn_down",))


def _head(weights: Weights) -> str:
    return "output.weight" if weights.has("output.weight") else "token_embd.weight"


def _check(config: ModelConfig, weights: Weights) -> None:
    """The shapes that the C code is written for."""
    if weights.has("blk.0.attn_q.bias") or weights.has("blk.0.attn_q_norm.weight"):
        raise Unavailable("the model has biases or norms of heads")
    if config.width % _BLOCK or config.ffn % _BLOCK or config.head_size % _BLOCK or config.vocabulary % _LANES:
        raise Unavailable(f"widths are not multiples of {_BLOCK}")


def _pack(blocks: Quantized) -> tuple[Array, Array]:
    """Weights as `product` in decode.c reads them: eight output rows side by side."""
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


def _library() -> ctypes.CDLL:
    """The compiled code, from the user's cache or made now."""
    features = _features()
    if not features >= _NEEDED:
        raise Unavailable(f"the processor lacks {', '.join(sorted(_NEEDED - features))}")
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    source = _SOURCE.read_bytes()
    key = hashlib.sha256(b"\0".join((source, " ".join((*_FLAGS, *sorted(features))).encode()))).hexdigest()[:24]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tollway"
    except RuntimeError as error:
        raise Unavailable(f"no folder to keep the compiled code in: {error}") from error
    path = folder / f"decode-{key}.so"
    if not path.exists():
        if compiler is None:
            raise Unavailable("there is no C compiler (cc, gcc or clang)")
        _compile(compiler, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path.name} does not load: {error}") from error


def _compile(compiler: str, path: Path) -> None:
    """Into place in one move: two processes may do this at once."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [*compiler.split(), *_FLAGS, str(_SOURCE), "-o", str(made), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
            if done.returncode:
                raise Unavailable(f"{compiler} fails: {done.stderr.strip()[-300:]}")
            made.replace(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"compiling fails: {error}") from error


def _features() -> set[str]:
    """What the processor can do, as Linux names it."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return set()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
