"""Llama and Qwen checkpoints from a local folder: `config.json`, safetensors files, `tokenizer.json`. Nothing is fetched.

The files are not trusted: sizes are checked before anything is allocated, names of shards must be plain file names, and a
template is only looked up by its hash. What we cannot run exactly as it was trained is a named error, never a guess.
Their rotary pairs are the halves of a head; ours are neighbours, so rows of q and k are re-ordered once, here.
"""

import hashlib
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from inference.gguf import BadValue, MissingKey, Quantized, Truncated
from inference.linear import Matrix
from inference.tokenizer import PATTERNS
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
    """The shape and the weights; raises `GGUFError` with what is the matter."""
    raw = _json(folder / "config.json")
    config = _config(raw)
    return config, SafetensorsWeights(folder, config, tied=bool(raw.get("tie_word_embeddings", False)))


def folder_hash(folder: Path) -> str:
    """sha256 over all shards, in order of their names."""
    digest = hashlib.sha256()
    for path in _shards(folder):
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """A byte-level BPE tokenizer as the metadata of a GGUF file, which `Tokenizer` is built from."""
    raw, told = _json(folder / "tokenizer.json"), _json(folder / "tokenizer_config.json")
    model = raw.get("model") or {}
    if model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise BadValue("tokenizer.json: only byte-level BPE is supported")
    added = {entry["content"]: entry["id"] for entry in raw.get("added_tokens", ()) if entry.get("special")}
    plain = {entry["content"]: entry["id"] for entry in raw.get("added_tokens", ()) if not entry.get("special")}
    if plain:
        raise BadValue(f"tokenizer.json: added tokens that are not special are not supported: {sorted(plain)[:5]}")
    ids: dict[int, str] = {index: token for token, index in model["vocab"].items()} | {i: t for t, i in added.items()}
    if sorted(ids) != list(range(len(ids))):
        raise BadValue("tokenizer.json: ids have gaps")
    _check_merges(model)
    eos = told.get("eos_token")
    eos = eos.get("content") if isinstance(eos, dict) else eos
    if eos not in added:
        raise BadValue(f"tokenizer_config.json: eos_token {eos!r} is not among the special tokens")
    template = folder / "chat_template.jinja"
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre_tokenizer(raw),
        "tokenizer.ggml.tokens": [ids[index] for index in range(len(ids))],
        "tokenizer.ggml.token_type": [3 if ids[index] in added else 1 for index in range(len(ids))],
        "tokenizer.ggml.eos_token_id": added[eos],
        "tokenizer.chat_template": template.read_text() if template.exists() else told.get("chat_template"),
    }


def _check_merges(model: Mapping[str, Any]) -> None:
    """tiktoken merges by id, `tokenizers` by the list of merges: the same only where ids rise along the list."""
    last = -1
    for merge in model.get("merges", ()):
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        index = model["vocab"].get(left + right, -1)
        if index <= last:
            raise BadValue(f"tokenizer.json: the merge {left!r} + {right!r} is out of the order of ids")
        last = index


def _pre_tokenizer(raw: Mapping[str, Any]) -> str:
    """The name of a known way to cut text; the two parts that matter are a regex and single digits."""
    found = raw.get("pre_tokenizer") or {}
    steps = found.get("pretokenizers", [found])
    if raw.get("normalizer") is not None:
        raise BadValue(f"tokenizer.json: the normalizer {raw['normalizer'].get('type')!r} is not supported")
    for step in steps:
        pattern = (step.get("pattern") or {}).get("Regex")
        if step.get("type") == "Split":
            for name, known in PATTERNS.items():
                if known == pattern:
                    return name
            raise BadValue(f"tokenizer.json: the pre-tokenizer's pattern {pattern!r} is unknown")
    return "smollm" if any(step.get("type") == "Digits" and step.get("individual_digits") for step in steps) else "gpt-2"


def _config(raw: Mapping[str, Any]) -> ModelConfig:
    kind = raw.get("model_type")
    if kind not in _ARCHITECTURES:
        raise BadValue(f"config.json: model_type {kind!r} is none of {', '.join(_ARCHITECTURES)}")
    if raw.get("quantization_config"):
        raise BadValue("config.json: quantized checkpoints are not supported; give the bf16 one, or a GGUF file")
    for name in ("mlp_bias", "use_sliding_window", *(("attention_bias",) if kind == "llama" else ())):
        if raw.get(name):
            raise BadValue(f"config.json: {name} is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise BadValue(f"config.json: hidden_act {raw['hidden_act']!r} is not silu")

    def number(name: str, default: int | None = None) -> int:
        value = raw.get(name, default)
        if type(value) is not int or not 1 <= value <= 1 << 24:
            raise BadValue(f"config.json: {name} is {value!r}")
        return value

    width, heads = number("hidden_size"), number("num_attention_heads")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    config = ModelConfig(
        layers=number("num_hidden_layers"),
        width=width,
        ffn=number("intermediate_size"),
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_size=number("head_dim", width // heads) if raw.get("head_dim") else width // heads,
        vocabulary=number("vocab_size"),
        context=number("max_position_embeddings"),
        rope_base=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(rope),
    )
    if config.heads % config.kv_heads or config.head_size % 2:
        raise BadValue(f"config.json: {heads} heads, {config.kv_heads} key heads of size {config.head_size} do not fit")
    return config


def _rope(raw: Mapping[str, Any]) -> RopeScaling | None:
    kind = raw.get("rope_type") or raw.get("type") or "default"
    if kind == "default":
        return None
    try:
        if kind == "linear":
            return RopeScaling(float(raw["factor"]))
        if kind == "llama3":
            names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
            return RopeScaling(float(raw["factor"]), *(float(raw[name]) for name in names))
    except (KeyError, TypeError, ValueError) as error:
        raise BadValue(f"config.json: rope scaling {kind!r} lacks {error}") from error
    raise BadValue(f"config.json: rope scaling {kind!r} is none of default, linear, llama3")


def _shards(folder: Path) -> list[Path]:
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if not (folder / "model.safetensors.index.json").is_file():
        raise MissingKey(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    names = set(_json(folder / "model.safetensors.index.json").get("weight_map", {}).values())
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
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
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadValue(f"{path.name}: the header is no JSON: {error}") from error
    header.pop("__metadata__", None)
    return {name: _place(path.name, name, entry, data, 8 + length) for name, entry in header.items()}


def _place(file: str, name: str, entry: Mapping[str, Any], data: mmap.mmap, base: int) -> _Place:
    dtype, shape, offsets = _TYPES.get(entry.get("dtype", "")), entry.get("shape"), entry.get("data_offsets")
    if dtype is None:
        raise BadValue(f"{file}: tensor {name!r} has type {entry.get('dtype')!r}, known are {', '.join(_TYPES)}")
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2 else [-1]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise BadValue(f"{file}: tensor {name!r} has a malformed shape or place")
    start, end = numbers[-2:]
    if end - start != math.prod(numbers[:-2]) * dtype.itemsize:
        raise BadValue(f"{file}: tensor {name!r} has {end - start} bytes for the shape {shape}")
    if base + end > len(data):
        raise Truncated(f"{file}: tensor {name!r} ends after the end of the file")
    return _Place(data, dtype, tuple(numbers[:-2]), base + start)


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


def _json(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingKey(f"{path.parent} has no {path.name}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadValue(f"{path.name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadValue(f"{path.name} is no JSON object")
    return found
