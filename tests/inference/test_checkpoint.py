"""Checkpoints from a folder: transformers' own models as the oracle, and folders that lie."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.ask import Ask
from inference.checkpoint import folder_hash, read_folder
from inference.engine import Engine
from inference.files import BadFile, BadValue, MissingKey, Truncated
from inference.gguf import GGUF
from inference.model import Llama
from inference.sampling import Sampling
from inference.scheduler import FAST, STANDARD, Limits
from inference.storage import Storage
from inference.tokenizer import Tokenizer
from tests.inference.tiny import run, tokenizer, tokens_of

ORACLE = Path(__file__).with_name("oracle.py")
KINDS = ("llama", "llama-tied-llama3-rope", "llama-linear-rope", "qwen2-bias", "qwen3-norms")
pytestmark = pytest.mark.timeout(600)


def oracle(*arguments: object) -> None:
    """Run the program beside this file where transformers is."""
    python = os.environ.get("TOLLWAY_CLIENTS_PYTHON")
    if not python:
        pytest.skip("TOLLWAY_CLIENTS_PYTHON is not set; `make test` sets it")
    command = [python, ORACLE, sysconfig.get_path("purelib"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    oracle("checkpoints", folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_are_transformers(folders: Path, kind: str) -> None:
    """In fp32 the same tokens, in both lanes and small chunks, and the log probabilities to 1e-3."""
    config, weights = read_folder(folders / kind)
    with torch.inference_mode():
        model = Llama(config, weights, "fp32")
    expected = json.loads((folders / kind / "expected.json").read_text())
    engine = Engine(model, tokenizer(), Storage(model, 2048, torch.float32), threads=1, limits=Limits(alone=40, shared=24))
    engine.start()
    try:
        sampling = Sampling(temperature=0, logprobs=0)
        for lane in (STANDARD, FAST):
            asks = [Ask(prompt=one["prompt"], most=24, lane=lane, sampling=sampling, ignore_eos=True) for one in expected]
            for one, deltas in zip(expected, run(engine, asks), strict=True):
                assert tokens_of(deltas) == one["tokens"]
                logs = torch.tensor(one["logits"], dtype=torch.float64).log_softmax(-1)
                told = [logprob.value for delta in deltas for logprob in delta.logprobs]
                want = [float(row[token]) for row, token in zip(logs, one["tokens"], strict=True)]
                assert told == pytest.approx(want, abs=1e-3)
    finally:
        engine.stop()


def test_the_real_tokenizer_is_the_tokenizers_packages(model_file: GGUF, words: Tokenizer, tmp_path: Path) -> None:
    """Every source file here, and text of all sorts: hundreds of thousands of tokens without a difference."""
    root = Path(__file__).parents[2]
    files = [path for folder in ("gateway", "inference", "tests", "docs", "dashboard") for path in (root / folder).rglob("*.*")]
    texts = [path.read_text()[:200_000] for path in sorted(files) if path.suffix in (".py", ".md", ".jsonl", ".json", ".txt")]
    texts += ["a  b   c\n\n\n  d\t\te", "1234567890 12 3.14159 x1y22", "naïve façade 北京 こんにちは 🙂🙃 ½ ﬁ \u00a0\u2003x", "'S 're 'LL don't", " ", ""]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    meta = {"tokens": model_file.meta["tokenizer.ggml.tokens"], "merges": model_file.meta["tokenizer.ggml.merges"]}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    oracle("tokenize", tmp_path / "meta.json", tmp_path / "texts.json", tmp_path / "out.json")
    theirs = json.loads((tmp_path / "out.json").read_text())
    for text, ids in zip(texts, theirs, strict=True):
        assert words.encode(text) == ids, text[:80]
    assert sum(map(len, theirs)) > 200_000


TOKENS = {"config.json": {"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 9, "max_position_embeddings": 64}}  # fmt: skip


def _folder(path: Path, config: dict[str, Any], data: bytes) -> Path:
    (path / "config.json").write_text(json.dumps(TOKENS["config.json"] | config))
    (path / "model.safetensors").write_bytes(data)
    return path


def _file(header: dict[str, Any], data: bytes = b"") -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


@pytest.mark.parametrize(
    ("config", "data", "error", "says"),
    [
        pytest.param({"model_type": "mamba"}, _file({}), BadValue, "mamba", id="architecture"),
        pytest.param({"quantization_config": {"quant_method": "gptq"}}, _file({}), BadValue, "quantized", id="quantization"),
        pytest.param({"rope_scaling": {"type": "yarn", "factor": 2}}, _file({}), BadValue, "yarn", id="rope"),
        pytest.param({"rope_scaling": {"type": "llama3", "factor": 2}}, _file({}), BadValue, "low_freq_factor", id="rope's fields"),
        pytest.param({"hidden_size": 1 << 40}, _file({}), BadValue, "hidden_size", id="a lie"),
        *(pytest.param({name: value}, _file({}), BadValue, name, id=f"{name} {value!r}") for name, value in (
            ("hidden_size", "8"), ("hidden_size", True), ("vocab_size", None), ("num_hidden_layers", 0), ("head_dim", 7.5),
            ("rope_theta", "x"), ("rope_theta", 0), ("rms_norm_eps", -1), ("rms_norm_eps", []), ("rope_scaling", [1]),
            ("quantization_config", 4), ("tie_word_embeddings", "no"), ("hidden_act", 7), ("model_type", ["llama"]),
        )),
        pytest.param({"rope_scaling": {"type": "linear", "factor": 0}}, _file({}), BadValue, "factor", id="a factor of nothing"),
        pytest.param({"num_key_value_heads": 3}, _file({}), BadValue, "fit", id="heads"),
        pytest.param({}, b"abc", Truncated, "shorter", id="too short"),
        pytest.param({}, (1 << 60).to_bytes(8, "little") + b"{}", Truncated, "header", id="a huge header"),
        pytest.param({}, (2).to_bytes(8, "little") + b"{x", BadValue, "JSON", id="no JSON"),
        pytest.param({}, _file({"a": [1]}), BadValue, "malformed", id="an entry that is none"),
        pytest.param({}, _file({"a": {"dtype": ["F32"], "shape": 1, "data_offsets": None}}), BadValue, "malformed", id="an entry of other types"),
        pytest.param({}, _file({"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}), BadValue, "F4", id="type"),
        pytest.param({}, _file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(4)), BadValue, "bytes", id="size"),
        pytest.param({}, _file({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}), BadValue, "malformed", id="negative"),
        pytest.param({}, _file({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}, bytes(4)), Truncated, "end", id="truncated"),
    ],
)  # fmt: skip
def test_a_bad_folder_is_a_named_error(tmp_path: Path, config: dict[str, Any], data: bytes, error: type[Exception], says: str) -> None:
    """It says what is wrong; nothing is allocated for a lie."""
    with pytest.raises(error, match=says) as raised:
        read_folder(_folder(tmp_path, config, data))
    assert isinstance(raised.value, BadFile)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    """Missing and misshapen tensors are named."""
    name = "model.embed_tokens.weight"
    data = _file({name: {"dtype": "F32", "shape": [3, 8], "data_offsets": [0, 96]}}, bytes(96))
    _, weights = read_folder(_folder(tmp_path, {}, data))
    with pytest.raises(BadValue, match=name):
        weights.matrix("token_embd.weight")
    with pytest.raises(MissingKey, match=r"layers\.0"):
        weights.vector("blk.0.attn_norm.weight")


def test_shards_stay_in_the_folder(tmp_path: Path) -> None:
    """An index that names a path is refused."""
    _folder(tmp_path, {}, b"").joinpath("model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(BadValue, match="secret"):
        read_folder(tmp_path)
    with pytest.raises(BadValue):
        folder_hash(tmp_path)
