"""The compiled step says what torch says, bit-equal in every company, and steps aside where it cannot run."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inference.attention import Span
from inference.blocks import BLOCK
from inference.cache import KV_FORMS, KVCache
from inference.gguf import Quantized
from inference.loading import load_model
from inference.model import Batch, Llama, Model
from inference.native import NativeLlama, Unavailable
from inference.native.library import library
from inference.weights import ModelConfig, TensorWeights

CONFIG = ModelConfig(
    layers=2, width=64, ffn=96, heads=6, kv_heads=2, head_size=32, vocabulary=128, context=1024, rope_base=10_000.0, eps=1e-5
)
BLOCKS = 80
_CHANCE = np.random.default_rng(5)


class QuantizedWeights(TensorWeights):
    """Random blocks, Q8_0 for the embedding and Q4_1 for the rest, and the same dense; `head`: of the output, if it has its own."""

    def __init__(self, head: str | None = None) -> None:
        width, keys, inner = CONFIG.width, CONFIG.kv_heads * CONFIG.head_size, CONFIG.heads * CONFIG.head_size
        shapes = {
            "attn_q": (inner, width), "attn_k": (keys, width), "attn_v": (keys, width), "attn_output": (width, inner),
            "ffn_gate": (CONFIG.ffn, width), "ffn_up": (CONFIG.ffn, width), "ffn_down": (width, CONFIG.ffn),
        }  # fmt: skip
        self.blocks = {
            f"blk.{layer}.{name}.weight": _blocks(*shape, low=0, high=16)
            for layer in range(2)
            for name, shape in shapes.items()
        }
        self.blocks["token_embd.weight"] = _blocks(CONFIG.vocabulary, width, low=-127, high=128)
        if head is not None:
            low, high = (-127, 128) if head == "Q8_0" else (0, 16)
            self.blocks["output.weight"] = _blocks(CONFIG.vocabulary, width, low=low, high=high)
        norms = ("output_norm.weight", *(f"blk.{i}.{part}_norm.weight" for i in range(2) for part in ("attn", "ffn")))
        vectors = {name: torch.from_numpy(_CHANCE.normal(1, 0.2, width).astype(np.float32)) for name in norms}
        super().__init__({name: _dense(blocks) for name, blocks in self.blocks.items()} | vectors)

    def quantized(self, *names: str) -> Quantized | None:
        if any(name not in self.blocks for name in names):
            return None
        parts = [self.blocks[name] for name in names]
        m = None if parts[0].m is None else np.concatenate([part.m for part in parts if part.m is not None])
        return Quantized(np.concatenate([part.q for part in parts]), np.concatenate([part.d for part in parts]), m)


def _blocks(rows: int, columns: int, *, low: int, high: int) -> Quantized:
    """Blocks whose scales are what a half-precision number can hold, as in a file."""
    d, m = _CHANCE.normal(0, 0.03, (2, rows, columns // 32)).astype(np.float16).astype(np.float32)
    q = _CHANCE.integers(low, high, (rows, columns))
    return Quantized(q.astype(np.int8), d / 16, None) if low else Quantized(q.astype(np.uint8), d, m)


def _dense(blocks: Quantized) -> Tensor:
    whole = blocks.q * np.repeat(blocks.d, 32, 1)
    return torch.from_numpy((whole if blocks.m is None else whole + np.repeat(blocks.m, 32, 1)).astype(np.float32))


@pytest.fixture(scope="module")
def weights() -> QuantizedWeights:
    return QuantizedWeights()


@pytest.fixture(scope="module")
def models(weights: QuantizedWeights) -> tuple[NativeLlama, Llama]:
    """The same model natively and by torch in float32."""
    with torch.inference_mode():
        plain = Llama(CONFIG, weights, "fp32")
    try:
        return NativeLlama(CONFIG, weights), plain
    except Unavailable as error:
        pytest.skip(str(error))


def _table(sequence: int) -> list[int]:
    return [1 + (7 * (20 * sequence + block)) % BLOCKS for block in range(20)]  # 80 and 7: every block once, none in order


def _rows(model: Model, cache: KVCache, rows: list[tuple[int, int, list[int]]], *, decode: bool = True) -> Tensor:
    """Logits of all rows (sequence, position, tokens) in one batch."""
    batch = Batch([], [], [])
    for sequence, position, tokens in rows:
        batch.spans.append(Span(len(batch.ids), len(tokens), position, _table(sequence), decode))
        batch.wanted.extend(range(len(batch.ids), len(batch.ids) + len(tokens)))
        batch.ids.extend(tokens)
    with torch.inference_mode():
        return model.forward(batch, cache)


def _tokens(count: int, seed: int) -> list[int]:
    return torch.randint(0, CONFIG.vocabulary, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


_OFF = {"fp32": 2e-3, "fp16": 8e-3, "bf16": 0.05, "int8": 0.2}


def _off(got: Tensor, want: Tensor) -> float:
    """How far the worst row is off, relative to its length."""
    return float(((got - want).norm(dim=-1) / want.norm(dim=-1)).max())


@pytest.mark.parametrize("form", KV_FORMS)
def test_it_says_what_torch_says(models: tuple[Model, Model], form: str) -> None:
    """Over more than two tiles of keys, at block and tile edges, for one to four sequences at once."""
    caches = [model.cache(BLOCKS, BLOCK, KV_FORMS[form]) for model in models]
    for position in range(290):
        count = 1 + position % 4
        rows = [(s, position, _tokens(1, 4 * position + s)) for s in range(4)]
        got, want = (_rows(model, cache, rows) for model, cache in zip(models, caches, strict=True))
        assert _off(got, want) < _OFF[form]
        alone = _rows(models[0], caches[0], rows[:count])
        assert torch.equal(alone, got[:count])


@pytest.mark.parametrize("form", KV_FORMS)
def test_a_prompt_says_what_torch_says(models: tuple[Model, Model], form: str) -> None:
    """In chunks of odd lengths, two prompts in a step, few rows and many."""
    caches = [model.cache(BLOCKS, BLOCK, KV_FORMS[form]) for model in models]
    texts, at = [_tokens(300, 1), _tokens(300, 2)], 0
    for count in (1, 5, 11, 64, 130, 89):
        rows = [(s, at, text[at : at + count]) for s, text in enumerate(texts)]
        got, want = (_rows(model, cache, rows, decode=False) for model, cache in zip(models, caches, strict=True))
        assert _off(got, want) < _OFF[form]
        at += count
    assert at == 300
    for mine, plain in zip(caches[0].layers, caches[1].layers, strict=True):
        assert torch.allclose(mine[:, 1:].float(), plain[:, 1:].float(), atol=0.05 if form != "int8" else 2)


def test_a_head_of_its_own_is_used(models: tuple[Model, Model]) -> None:
    """A head that is not the embedding, in Q8_0: what torch says, for one row and for many, and not what a tied one says."""
    weights = QuantizedWeights("Q8_0")
    with torch.inference_mode():
        untied = NativeLlama(CONFIG, weights), Llama(CONFIG, weights, "fp32")
    caches = [model.cache(BLOCKS, BLOCK, torch.float16) for model in untied]
    for position, count in ((0, 1), (1, 30)):
        rows = [(0, position, _tokens(count, 3)), (1, position, _tokens(count, 4))]
        got, want = (_rows(model, cache, rows) for model, cache in zip(untied, caches, strict=True))
        assert _off(got, want) < _OFF["fp16"]
    weights.blocks["output.weight"] = weights.blocks["token_embd.weight"]
    tied = NativeLlama(CONFIG, weights)
    assert _off(_rows(tied, tied.cache(BLOCKS, BLOCK, torch.float16), [(0, 0, _tokens(5, 3))]), want[:5]) > 0.1


def test_a_prompts_bits_are_its_own(models: tuple[Model, Model]) -> None:
    """However it is cut into chunks, whoever is computed beside it, whatever lies in the blocks behind it, on any threads."""
    compiled, chance = models[0], random.Random(4)
    text, threads = _tokens(300, 3), torch.get_num_threads()
    cache = compiled.cache(BLOCKS, BLOCK, torch.float16)
    whole = _rows(compiled, cache, [(0, 0, text)], decode=False)
    try:
        for _ in range(6):
            torch.set_num_threads(chance.choice((1, 2, 3)))
            again, at = compiled.cache(BLOCKS, BLOCK, torch.float16), 0
            again.rows.fill_(7.0)
            while at < len(text):
                count = min(chance.choice((1, 7, 16, 100, 200)), len(text) - at)
                beside = [(1, 0, _tokens(chance.randint(1, 60), 5)), (2, 0, _tokens(3, 6))]
                got = _rows(compiled, again, [beside[0], (0, at, text[at : at + count]), beside[1]], decode=False)
                assert torch.equal(got[len(beside[0][2]) :][:count], whole[at : at + count])
                at += count
    finally:
        torch.set_num_threads(threads)


def test_a_verified_row_has_the_bits_of_a_decoded_one(models: tuple[Model, Model]) -> None:
    """One by one, all at once, beside others, with one thread or three: the same logits."""
    compiled, _ = models
    tokens = _tokens(150, 1)
    cache = compiled.cache(BLOCKS, BLOCK, torch.float16)
    single = torch.cat([_rows(compiled, cache, [(0, at, [token])]) for at, token in enumerate(tokens)])
    threads = torch.get_num_threads()
    try:
        for many, count in ((3, 1), (1, 11), (3, 24)):
            torch.set_num_threads(many)
            again = compiled.cache(BLOCKS, BLOCK, torch.float16)
            for at in range(0, len(tokens), count):
                part = tokens[at : at + count]
                got = _rows(compiled, again, [(1, at, [5]), (0, at, part), (2, at, [7, 8])])
                assert torch.equal(got[1 : 1 + len(part)], single[at : at + len(part)])
    finally:
        torch.set_num_threads(threads)


def test_prompts_and_decoding_rows_share_a_step(models: tuple[Model, Model]) -> None:
    """Rows of both kinds come back in the batch's order, from one cache."""
    compiled, plain = models
    caches = [model.cache(BLOCKS, BLOCK, torch.float32) for model in models]
    prompt, logits = list(range(40)), []
    for model, cache in ((compiled, caches[0]), (plain, caches[1])):
        with torch.inference_mode():
            model.forward(Batch(prompt, [Span(0, 40, 0, _table(0), decode=False)], []), cache)
            spans = [Span(0, 1, 40, _table(0), decode=True), Span(1, 40, 0, _table(1), decode=False)]
            logits.append(model.forward(Batch([9, *prompt], spans, [0, 40]), cache))
    assert logits[0].shape == (2, CONFIG.vocabulary)
    assert (logits[0] - logits[1]).abs().max() < 2e-3


def test_a_step_may_want_no_logits(models: tuple[Model, Model]) -> None:
    """A chunk in the middle of a prompt."""
    compiled, _ = models
    with torch.inference_mode():
        spans = [Span(0, 20, 0, _table(0), decode=False)]
        assert compiled.forward(Batch(_tokens(20, 1), spans, []), compiled.cache(BLOCKS, BLOCK, torch.float16)).shape[0] == 0


def test_it_compiles_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: tuple[Model, Model]) -> None:
    """Into the user's cache; the second time no compiler is needed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library()
    assert [path.suffix for path in (tmp_path / "tollway").iterdir()] == [".so"]
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    library()


@pytest.mark.parametrize("without", ["-mno-avx512vnni", "-mno-avx512f", "-mno-avx512f -mno-avxvnni"])
def test_an_older_processor_says_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: tuple[Model, Model], weights: QuantizedWeights, without: str
) -> None:
    """Narrower vectors and no sums of 16-bit products in one instruction: slower, and no bit differs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", f"cc {without}")
    try:
        older = NativeLlama(CONFIG, weights)
    except Unavailable as error:
        pytest.skip(str(error))
    found = []
    for model in (models[0], older):
        cache = model.cache(BLOCKS, BLOCK, torch.float16)
        prompt = _rows(model, cache, [(0, 0, _tokens(150, 1)), (1, 0, _tokens(7, 2))], decode=False)
        found.append(torch.cat((prompt, _rows(model, cache, [(0, 150, _tokens(5, 3)), (1, 7, [9])]))))
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        pytest.param("PATH", "", "no C compiler", id="none there"),
        pytest.param("CC", "false", "false fails", id="it fails"),
        pytest.param("CC", "/nowhere/cc", "compiling fails", id="it is not there"),
    ],
)
def test_without_a_compiler_torch_runs_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str
) -> None:
    """The model loads, says why there is no native step, and answers the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(variable, value)
    model = load_model(CONFIG, QuantizedWeights())
    assert isinstance(model, Llama)
    if "processor" not in model.report["native"]:
        assert why in model.report["native"]
    assert F.softmax(_rows(model, model.cache(BLOCKS, BLOCK, torch.float16), [(0, 0, [1])]), -1).sum() == pytest.approx(1)


def _dense_layer(weights: QuantizedWeights) -> None:
    del weights.blocks["blk.1.ffn_up.weight"]


def _other_layer(weights: QuantizedWeights) -> None:
    weights.blocks["blk.1.attn_output.weight"] = _blocks(CONFIG.width, CONFIG.heads * CONFIG.head_size, low=-127, high=128)


def _other_embedding(weights: QuantizedWeights) -> None:
    weights.blocks["token_embd.weight"] = _blocks(CONFIG.vocabulary, CONFIG.width, low=0, high=16)


@pytest.mark.parametrize(
    ("head", "change", "says"),
    [
        pytest.param(None, _dense_layer, "blk.1.ffn_gate", id="a layer that is no blocks"),
        pytest.param(None, _other_layer, "blk.1.attn_output.weight is not Q4_1", id="a layer in Q8_0"),
        pytest.param(None, _other_embedding, "token_embd.weight is not Q8_0", id="an embedding in Q4_1"),
        pytest.param("Q4_1", lambda weights: None, "output.weight is not Q8_0", id="a head in Q4_1"),
    ],
)
def test_other_weights_are_refused(head: str | None, change: Callable[[QuantizedWeights], None], says: str) -> None:
    """What has no test above runs in torch: each matrix is looked at."""
    weights = QuantizedWeights(head)
    change(weights)
    with pytest.raises(Unavailable, match=f"{says}|processor lacks"):
        NativeLlama(CONFIG, weights)
