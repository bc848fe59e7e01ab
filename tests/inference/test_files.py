"""Metadata that lies: whatever stands in a field, it is read or named, and nothing else happens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from inference.files import BadFile
from inference.gguf import GGUF, TensorInfo
from inference.tokenizer import Tokenizer
from inference.weights import read_config
from tests.inference.tiny import CONFIG, tensors, tokenizer_meta

_ODD = ("x", "", 0, 1, -1, 1 << 63, 0.0, -1.0, float("nan"), float("inf"), True, ["a"], [], [1, 2], None)


@cache
def _meta() -> dict[str, Any]:
    return tokenizer_meta() | {
        "general.architecture": "llama", "llama.block_count": CONFIG.layers, "llama.embedding_length": CONFIG.width,
        "llama.feed_forward_length": CONFIG.ffn, "llama.attention.head_count": CONFIG.heads,
        "llama.attention.head_count_kv": CONFIG.kv_heads, "llama.context_length": CONFIG.context,
        "llama.attention.layer_norm_rms_epsilon": CONFIG.eps, "llama.rope.freq_base": CONFIG.rope_base,
        "llama.rope.dimension_count": CONFIG.head_size, "llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 1.0,
    }  # fmt: skip


def _file(meta: dict[str, Any], shapes: dict[str, tuple[int, ...]] | None = None) -> GGUF:
    known = {name: tuple(tensor.shape) for name, tensor in tensors().items()} | (shapes or {})
    return GGUF(None, meta, {name: TensorInfo(name, shape, "F32", 0, 0) for name, shape in known.items()})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", _meta())
def test_a_field_is_read_or_named(key: str) -> None:
    """Of every type and in every range; what is read fits what the model computes with."""
    for value in _ODD:
        meta = _meta() | {key: value} if value is not None else {name: value for name, value in _meta().items() if name != key}
        try:
            config, words = read_config(_file(meta)), Tokenizer(meta)
        except BadFile:
            continue
        assert all(0 < number < 1e12 for number in (config.rope_base, config.eps, config.context))
        assert 0 <= words.eos < words.size


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"rope_freqs.weight": (8,)}, "rope_freqs"),
        ({"blk.0.attn_q.bias": (CONFIG.width,)}, "attn_q.bias"),
        ({"blk.0.ffn_gate_inp.weight": (4, CONFIG.width)}, "ffn_gate_inp"),
        ({"output.weight": (3, 5)}, "output.weight"),
        ({"blk.1.ffn_up.weight": (CONFIG.width, CONFIG.ffn)}, "ffn_up"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tensor_that_we_would_leave_out_is_named(shapes: dict[str, tuple[int, ...]], says: str) -> None:
    """Rather an error than a model without its experts, its biases or its stretched rotation."""
    with pytest.raises(BadFile, match=says):
        read_config(_file(_meta(), shapes))


def test_rope_scaling_is_read_or_named() -> None:
    """Linear is done; what is not known is an error, never left out."""
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    rope = read_config(_file(_meta() | linear)).rope
    assert rope is not None
    assert rope.factor == 2
    with pytest.raises(BadFile, match="yarn"):
        read_config(_file(_meta() | {"llama.rope.scaling.type": "yarn"}))
