"""Llama and Qwen checkpoints from a local folder: `config.json`, safetensors files, `tokenizer.json`. Nothing is fetched.

The files are not trusted: sizes are checked before anything is allocated, names of shards must be plain file names, and a
template is only looked up by its hash. What we cannot run exactly as it was trained is a named error, never a guess.
Their rotary pairs are the halves of a head; ours are neighbours, so rows of q and k are re-ordered once, here.
"""

import hashlib
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from inference.files import BadValue, MissingKey, Positive, Size, Truncated, read_json, shaped
from inference.gguf import Quantized
from inference.linear import Matrix
from inference.weights import ModelConfig, RopeScaling

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_MOST_HEADER = 64 << 20
_PARTS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_TURNED = ("attn_q", "attn_k", "attn_q_norm", "attn_k_norm")


@dataclass(frozen=True, slots=True)
class _Place:
    data: mmap.mmap
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


class SafetensorsWeights:
    """A folder's tensors under the names of a GGUF file."""

    def __init__(self, folder: Path, config: ModelConfig, *, tied: bool) -> None:
        self._config, self._tied = config, tied
        self._places: dict[str, _Place] = {}
        for path in _shards(folder):
            self._places |= _read_header(path)

    def has(self, name: str) -> bool:
        return not (name == "output.weight" and self._tied) and _their_name(name) in self._places

    def vector(self, name: str) -> Tensor:
        found = self._load(name)
        return found[_neighbours(len(found), self._config.head_size)] if _part(name) in _TURNED else found

    def matrix(self, *names: str) -> Matrix:
        return Matrix(torch.cat([self._turned(name) for name in names]))

    def quantized(self, *names: str) -> Quantized | None:
        """Folders hold plain numbers."""
        return None

    def _turned(self, name: str) -> Tensor:
        found = self._load(name)
        return found[_neighbours(len(found), self._config.head_size)] if _part(name) in _TURNED else found

    def _load(self, name: str) -> Tensor:
        place = self._places.get(_their_name(name))
        if place is None:
            raise MissingKey(f"there is no tensor {_their_name(name)!r}")
        if place.shape != (wanted := _shape(name, self._config)):
            raise BadValue(f"tensor {_their_name(name)!r} has shape {place.shape}, config.json says {wanted}")
        raw = bytearray(place.data[place.start : place.start + math.prod(place.shape) * place.dtype.itemsize])
        return torch.frombuffer(raw, dtype=place.dtype).view(place.shape).float()


def read_folder(folder: Path) -> tuple[ModelConfig, SafetensorsWeights]:
    """The shape and the weights; raises `BadFile` with what is the matter."""
    config, tied = _config(read_json(folder / "config.json"))
    return config, SafetensorsWeights(folder, config, tied=tied)


def folder_hash(folder: Path) -> str:
    """sha256 over all shards, in order of their names."""
    digest = hashlib.sha256()
    for path in _shards(folder):
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


class _Rope(msgspec.Struct):
    rope_type: str | None = None
    type: str | None = None
    rope_theta: Positive | None = None
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Positive | None = None


class _Kind(msgspec.Struct):
    model_type: str


class _Config(msgspec.Struct):
    """What we use of `config.json`, and what we cannot do."""

    hidden_size: Size
    num_attention_heads: Size
    num_hidden_layers: Size
    intermediate_size: Size
    vocab_size: Size
    max_position_embeddings: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    rope_theta: Positive | None = None
    rope_parameters: _Rope | None = None
    rope_scaling: _Rope | None = None
    rms_norm_eps: Positive = 1e-6
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    quantization_config: dict[str, Any] | None = None
    mlp_bias: bool | None = None
    attention_bias: bool | None = None
    use_sliding_window: bool | None = None


def _config(raw: object) -> tuple[ModelConfig, bool]:
    """The shape, and whether the embedding is the head too."""
    if (kind := shaped(raw, _Kind, "config.json").model_type) not in _ARCHITECTURES:
        raise BadValue(f"config.json: model_type {kind!r} is none of {', '.join(_ARCHITECTURES)}")
    told = shaped(raw, _Config, "config.json")
    if told.quantization_config:
        raise BadValue("config.json: quantized checkpoints are not supported; give the bf16 one, or a GGUF file")
    for name in ("mlp_bias", "use_sliding_window", *(("attention_bias",) if kind == "llama" else ())):
        if getattr(told, name):
            raise BadValue(f"config.json: {name} is not supported")
    if told.hidden_act != "silu":
        raise BadValue(f"config.json: hidden_act {told.hidden_act!r} is not silu")
    rope = told.rope_parameters or told.rope_scaling or _Rope()
    config = ModelConfig(
        layers=told.num_hidden_layers,
        width=told.hidden_size,
        ffn=told.intermediate_size,
        heads=told.num_attention_heads,
        kv_heads=told.num_key_value_heads or told.num_attention_heads,
        head_size=told.head_dim or told.hidden_size // told.num_attention_heads,
        vocabulary=told.vocab_size,
        context=told.max_position_embeddings,
        rope_base=rope.rope_theta or told.rope_theta or 10_000.0,
        eps=told.rms_norm_eps,
        rope=_rope(rope),
    )
    if config.heads % config.kv_heads or config.head_size % 2 or not config.head_size:
        raise BadValue(f"config.json: {config.heads} heads, {config.kv_heads} key heads of size {config.head_size} do not fit")
    return config, told.tie_word_embeddings


def _rope(told: _Rope) -> RopeScaling | None:
    kind = told.rope_type or told.type or "default"
    if kind not in (kinds := {
        "default": (), "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }):  # fmt: skip
        raise BadValue(f"config.json: rope scaling {kind!r} is none of {', '.join(kinds)}")
    values = [getattr(told, name) for name in kinds[kind]]
    if None in values or (len(values) > 1 and values[1] == values[2]):
        raise BadValue(f"config.json: rope scaling {kind!r} lacks one of {', '.join(kinds[kind])}, or both bounds are one")
    return RopeScaling(*values) if values else None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _shards(folder: Path) -> list[Path]:
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        raise MissingKey(f"{folder} has neither model.safetensors nor {index.name}")
    names = set(shaped(read_json(index), _Index, index.name).weight_map.values())
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise BadValue(f"model.safetensors.index.json names {name!r}, which is no file of the folder")
    return sorted(folder / name for name in names)


def _read_header(path: Path) -> dict[str, _Place]:
    with open(path, "rb") as file:
        if (size := file.seek(0, 2)) < 8:
            raise Truncated(f"{path.name} is shorter than a header")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(data[:8], "little")
    if length > min(_MOST_HEADER, size - 8):
        raise Truncated(f"{path.name}: a header of {length} bytes cannot be in a file of {size}")
    try:
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadValue(f"{path.name}: the header is no JSON: {error}") from error
    header.pop("__metadata__", None)
    return {name: _place(f"{path.name}: tensor {name!r}", entry, data, 8 + length) for name, entry in header.items()}


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0)]]
    data_offsets: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]


def _place(tensor: str, raw: object, data: mmap.mmap, base: int) -> _Place:
    entry = shaped(raw, _Entry, f"{tensor} is malformed")
    if (dtype := _TYPES.get(entry.dtype)) is None:
        raise BadValue(f"{tensor} has type {entry.dtype!r}, known are {', '.join(_TYPES)}")
    start, end = entry.data_offsets
    if end - start != math.prod(entry.shape) * dtype.itemsize:
        raise BadValue(f"{tensor} has {end - start} bytes for the shape {entry.shape}")
    if base + end > len(data):
        raise Truncated(f"{tensor} ends after the end of the file")
    return _Place(data, dtype, tuple(entry.shape), base + start)


def _shape(name: str, config: ModelConfig) -> tuple[int, ...]:
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    rows = {
        "attn_q": (queries, config.width), "attn_k": (keys, config.width), "attn_v": (keys, config.width),
        "attn_output": (config.width, queries), "ffn_gate": (config.ffn, config.width), "ffn_up": (config.ffn, config.width),
        "ffn_down": (config.width, config.ffn), "attn_norm": (config.width,), "ffn_norm": (config.width,),
        "attn_q_norm": (config.head_size,), "attn_k_norm": (config.head_size,), "output_norm": (config.width,),
        "token_embd": (config.vocabulary, config.width), "output": (config.vocabulary, config.width),
    }[_part(name)]  # fmt: skip
    return rows[:1] if name.endswith(".bias") else rows


def _neighbours(rows: int, size: int) -> Tensor:
    """The order that makes neighbours of what are halves of each head."""
    return torch.arange(rows).view(-1, 2, size // 2).transpose(1, 2).reshape(-1)


def _part(name: str) -> str:
    return name.split(".")[-2]


def _their_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    if not name.startswith("blk."):
        part, kind = name.split(".")
        return f"{_WHOLE[part]}.{kind}"
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_PARTS[part]}.{kind}"
