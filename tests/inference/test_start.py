"""What the server says when it cannot start: the error by name, and the way out."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from inference import server
from tests.inference.tiny import CONFIG, gguf_bytes, tensors, tokenizer_meta


def _file(tensor_kind: int = 0, **changes: Any) -> bytes:
    """The tiny model as a GGUF file, with some metadata changed (_ for .)."""
    words = tokenizer_meta()
    meta: dict[str, tuple[int, Any]] = {
        "general.architecture": (8, "llama"), "llama.block_count": (4, CONFIG.layers), "llama.embedding_length": (4, CONFIG.width),
        "llama.feed_forward_length": (4, CONFIG.ffn), "llama.attention.head_count": (4, CONFIG.heads),
        "llama.attention.head_count_kv": (4, CONFIG.kv_heads), "llama.context_length": (4, CONFIG.context),
        "llama.rope.freq_base": (6, CONFIG.rope_base), "llama.attention.layer_norm_rms_epsilon": (6, CONFIG.eps),
        "tokenizer.ggml.model": (8, "gpt2"), "tokenizer.ggml.pre": (8, "smollm"), "tokenizer.ggml.eos_token_id": (4, 2),
        "tokenizer.ggml.tokens": (9, (8, words["tokenizer.ggml.tokens"])),
        "tokenizer.ggml.token_type": (9, (5, words["tokenizer.ggml.token_type"])),
        "tokenizer.chat_template": (8, words["tokenizer.chat_template"]),
    }  # fmt: skip
    meta |= {name: (meta[name][0], value) for key, value in changes.items() for name in meta if name.replace(".", "_") == key}
    blocks = {name: (tuple(tensor.shape), 0, tensor.contiguous().numpy().tobytes()) for name, tensor in tensors().items()}
    first = next(iter(blocks))
    blocks[first] = (blocks[first][0], tensor_kind, blocks[first][2])
    return gguf_bytes(meta, blocks)


def _start(monkeypatch: pytest.MonkeyPatch, path: Path) -> str:
    """What it says when it leaves."""
    monkeypatch.setattr("sys.argv", ["server", "--model", str(path), "--threads", "1", "--kv-tokens", "512", "--weights", "fp32"])
    with pytest.raises(SystemExit) as left:
        server.main()
    return str(left.value.code)


@pytest.mark.parametrize(
    ("data", "says", "way_out"),
    [
        pytest.param(_file()[:-100], "ends after the end", "fetch it again", id="cut short"),
        pytest.param(_file()[:-64] + b"\xff" * 64, "not finite", "fetch it again", id="numbers that are none"),
        pytest.param(_file()[:200], "left", "fetch it again", id="cut in its head"),
        pytest.param(b"PK\3\4" + bytes(60), "not GGUF", "--model takes a GGUF file", id="another format"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1", "version 2 or 3", id="an old version"),
        pytest.param(_file(general_architecture="mamba"), "'mamba' is not llama", "another engine", id="architecture"),
        pytest.param(_file(tensor_kind=12), "type 12", "Q4_0, Q4_1", id="quantization"),
        pytest.param(_file(tokenizer_ggml_pre="tekken"), "'tekken'", "another engine", id="pre-tokenizer"),
        pytest.param(_file(tokenizer_chat_template="{{ x }}"), "template", "--chat-format chatml", id="template"),
        pytest.param(_file(llama_attention_head_count=3), "heads", "another engine", id="heads that do not divide"),
    ],
)
def test_a_file_that_it_cannot_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: bytes, says: str, way_out: str) -> None:
    """One message, no stack trace, nothing served."""
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    said = _start(monkeypatch, path)
    assert str(path) in said
    assert says in said
    assert way_out in said


def test_a_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A path that nobody can read is told as one."""
    assert "--model must name a file" in _start(monkeypatch, tmp_path / "none.gguf")


def test_the_whole_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file undamaged is a model, so that the table above is about the damage."""
    (tmp_path / "model.gguf").write_bytes(_file())
    monkeypatch.setattr("sys.argv", ["server", "--model", str(tmp_path / "model.gguf"), "--kv-tokens", "512", "--weights", "fp32"])
    served = server.load(server._options())
    assert served.engine.context == 512
