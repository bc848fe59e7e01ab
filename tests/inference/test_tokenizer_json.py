"""A checkpoint's tokenizer: what is read is the same as from metadata, what we would get wrong is an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference.files import BadValue
from inference.tokenizer import CHATML, Tokenizer
from inference.tokenizer_json import read_tokenizer
from tests.inference.tiny import tokenizer, tokenizer_meta


def _words(**changes: Any) -> dict[str, Any]:
    raw = {
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
        "added_tokens": [{"content": t, "id": 3 + i, "special": True} for i, t in enumerate(("<|im_start|>", "<|im_end|>"))],
        "pre_tokenizer": {"type": "ByteLevel"}, "normalizer": None,
    }  # fmt: skip
    return raw | changes


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": {"type": "Unigram"}}, "BPE"),
        ({"model": {"type": "Unigram", "vocab": [["a", -1.5]]}}, "BPE"),
        ({"model": None}, "BPE"),
        ({"model": {"type": "BPE", "vocab": {"a": "0"}}}, "vocab"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}, "merges"),
        ({"added_tokens": [{"id": 3}]}, "content"),
        ({"pre_tokenizer": [1]}, "pre_tokenizer"),
        ({"normalizer": {"type": "NFC"}}, "NFC"),
        ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "x+"}}}, "x+"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 2}, "merges": []}}, "gaps"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 5, "ba": 2}, "merges": ["a b", "b a"]}}, "order"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_tokenizer_that_we_would_get_wrong_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """Rather an error than other ids than the model was trained with."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(_words(**change)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    with pytest.raises(BadValue) as raised:
        read_tokenizer(tmp_path)
    assert says in str(raised.value)


def test_a_known_tokenizer_is_read(tmp_path: Path) -> None:
    """The same vocabulary as a folder and as metadata; an unknown template needs a word from the operator."""
    plain = tokenizer()
    from_bytes = {piece: index for index, piece in enumerate(_characters())}
    raw = _words(model={"type": "BPE", "vocab": {t: i for t, i in from_bytes.items() if i > 2}, "merges": []})
    raw["added_tokens"] = [{"content": t, "id": i, "special": True} for i, t in enumerate(("<|endoftext|>", "<|im_start|>", "<|im_end|>"))]  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}, "chat_template": "x"}))
    meta = read_tokenizer(tmp_path)
    read: Callable[..., Tokenizer] = Tokenizer
    assert read(meta, CHATML).encode("Hello, wörld") == plain.encode("Hello, wörld")
    with pytest.raises(BadValue, match="--chat-format chatml"):
        read(meta)


def _characters() -> list[str]:
    return list(tokenizer_meta()["tokenizer.ggml.tokens"])
