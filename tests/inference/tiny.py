"""A llama of two layers with random weights, a tokenizer of single bytes, and a writer of GGUF files."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inference.ask import Ask, Delta
from inference.engine import Engine
from inference.model import Llama
from inference.tokenizer import Tokenizer, _unicode_to_byte
from inference.weights import ModelConfig, TensorWeights

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCABULARY = 256 + 3
CONFIG = ModelConfig(
    layers=2, width=64, ffn=96, heads=4, kv_heads=2, head_size=16, vocabulary=VOCABULARY, context=512, rope_base=10_000.0, eps=1e-5
)


def tokenizer_meta() -> dict[str, Any]:
    """Metadata of a tokenizer whose ids 0 to 2 are control tokens and 3 + b is the byte b."""
    characters = {value: character for character, value in _unicode_to_byte().items()}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(characters[v] for v in range(256))],
        "tokenizer.ggml.token_type": [3] * 3 + [1] * 256,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


@cache
def tokenizer() -> Tokenizer:
    """The tokenizer of single bytes."""
    return Tokenizer(tokenizer_meta())


@cache
def tensors() -> dict[str, Tensor]:
    """Random, but with a spread that makes the argmax depend on the whole context."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int, scale: float = 0.2) -> Tensor:
        return torch.randn(*shape, generator=generator) * scale

    width, keys, ffn = CONFIG.width, CONFIG.kv_heads * CONFIG.head_size, CONFIG.ffn
    found = {"token_embd.weight": random(VOCABULARY, width, scale=1.0), "output_norm.weight": 1 + random(width)}
    for layer in range(CONFIG.layers):
        shapes = {
            "attn_q": (width, width), "attn_k": (keys, width), "attn_v": (keys, width), "attn_output": (width, width),
            "ffn_gate": (ffn, width), "ffn_up": (ffn, width), "ffn_down": (width, ffn),
        }  # fmt: skip
        found |= {f"blk.{layer}.{name}.weight": random(*shape) for name, shape in shapes.items()}
        found |= {f"blk.{layer}.{name}.weight": 1 + random(width) for name in ("attn_norm", "ffn_norm")}
    return found


@cache
def model(kind: str) -> Llama:
    """The tiny model in one kind of weights."""
    with torch.inference_mode():
        return Llama(CONFIG, TensorWeights(tensors()), kind)


def plain_logits(ids: Sequence[int]) -> Tensor:
    """All rows' logits by the textbook: no cache, no batch, no fused anything."""
    t, heads, keys, size = tensors(), CONFIG.heads, CONFIG.kv_heads, CONFIG.head_size
    positions = torch.arange(len(ids), dtype=torch.float64)
    angles = positions[:, None] * CONFIG.rope_base ** (-torch.arange(size // 2, dtype=torch.float64) / (size // 2))
    cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + CONFIG.eps) * weight

    def turn(x: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)

    x = t["token_embd.weight"][list(ids)]
    mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)
    for layer in range(CONFIG.layers):
        w = {name.split(".")[2]: value for name, value in t.items() if name.startswith(f"blk.{layer}.")}
        h = norm(x, w["attn_norm"])
        q = turn((h @ w["attn_q"].T).view(-1, heads, size))
        k = turn((h @ w["attn_k"].T).view(-1, keys, size)).repeat_interleave(heads // keys, 1)
        v = (h @ w["attn_v"].T).view(-1, keys, size).repeat_interleave(heads // keys, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) * size**-0.5 + mask
        x = x + torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(ids), -1) @ w["attn_output"].T
        h = norm(x, w["ffn_norm"])
        x = x + (F.silu(h @ w["ffn_gate"].T) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
    return norm(x, t["output_norm.weight"]) @ t["token_embd.weight"].T


def run(engine: Engine, asks: Sequence[Ask]) -> list[list[Delta]]:
    """Answer all asks at once on a started engine."""

    async def one(ask: Ask, name: str) -> list[Delta]:
        return [delta async for delta in engine.submit(ask, name)]

    async def all_of_them() -> list[list[Delta]]:
        return await asyncio.gather(*(one(ask, str(index)) for index, ask in enumerate(asks)))

    return asyncio.run(all_of_them())


def tokens_of(deltas: Sequence[Delta]) -> list[int]:
    """The generated ids."""
    return [token for delta in deltas for token in delta.tokens]


def gguf_bytes(meta: dict[str, tuple[int, Any]], blocks: dict[str, tuple[tuple[int, ...], int, bytes]]) -> bytes:
    """A GGUF file: meta as key -> (type, value), tensors as name -> (shape rows first, type, data)."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value_of(kind: int, value: Any) -> bytes:
        if kind == 8:
            return text(value)
        if kind == 9:
            of, items = value
            return struct.pack("<IQ", of, len(items)) + b"".join(value_of(of, item) for item in items)
        return struct.pack({0: "<B", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q"}[kind], value)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(blocks), len(meta))
    for key, (kind, value) in meta.items():
        head += text(key) + struct.pack("<I", kind) + value_of(kind, value)
    data = b""
    for name, (shape, kind, raw) in blocks.items():
        data += b"\0" * (-len(data) % 32)
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        head += struct.pack("<IQ", kind, len(data))
        data += raw
    return head + b"\0" * (-len(head) % 32) + data
