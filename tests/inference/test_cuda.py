"""The GPU's code on the CPU: a double attends, graphs run what they recorded; the real kernel is asked for shapes only."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from inference.ask import Ask
from inference.attention import Span
from inference.cache import Heads
from inference.cuda import CudaLlama, PagedAttention, PagedCache, Replay
from inference.engine import Engine
from inference.linear import KindUnavailable
from inference.loading import load_model
from inference.sampling import Sampling
from inference.scheduler import FAST, STANDARD, Limits
from inference.storage import Storage
from inference.weights import TensorWeights
from tests.inference.tiny import CONFIG, model, plain_logits, run, tensors, tokenizer, tokens_of

CPU = torch.device("cpu")


def _double(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, begins: torch.Tensor, _: None, most_q: int, most_k: int, **o: Any) -> torch.Tensor:
    """What the kernel's documentation says that it does, sequence by sequence."""
    assert (o["scale"], o["window_size"], o["num_splits"]) == (1.0, (-1, 0), 1)
    assert o["block_table"].dtype == o["seqused_k"].dtype == begins.dtype == torch.int32
    out = torch.empty_like(q)
    for n, (begin, end) in enumerate(zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)):
        used = int(o["seqused_k"][n])
        assert end - begin <= most_q
        assert used <= most_k
        keys, values = (pool[o["block_table"][n].long()].flatten(0, 1)[:used] for pool in (k, v))
        keys, values = (side.repeat_interleave(q.shape[1] // k.shape[2], 1) for side in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", q[begin:end], keys)
        last = torch.arange(used - (end - begin), used)[:, None]
        scores = scores.masked_fill(torch.arange(used)[None] > last, float("-inf"))
        out[begin:end] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out


class _Recorder:
    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, do: Replay) -> Replay:
        self.recorded += 1
        return do


def _model(recorder: _Recorder) -> CudaLlama:
    with torch.inference_mode():
        return CudaLlama(CONFIG, TensorWeights(tensors()), CPU, torch.float32, _double, recorder)


def test_its_answers_are_the_plain_models() -> None:
    """Prompts in chunks, decoding in graphs of padded sizes, verifying, shared prefixes, preemptions: the plain forward's tokens."""
    chance, recorder = random.Random(3), _Recorder()
    there = _model(recorder)
    engine = Engine(there, tokenizer(), Storage(there, 512), threads=1, limits=Limits(alone=40, shared=24, reserve_blocks=0))
    engine.start()
    shared = [chance.randrange(3, 259) for _ in range(60)]
    prompts = [shared[: chance.randrange(60)] + [chance.randrange(3, 259) for _ in range(chance.randint(1, 60))] for _ in range(7)]
    try:
        sampling = Sampling(temperature=0, logprobs=1)
        asks = [Ask(prompt=p, most=16, lane=chance.choice((FAST, STANDARD)), sampling=sampling, ignore_eos=True) for p in prompts]
        answers = run(engine, asks)
    finally:
        engine.stop()
    assert 1 <= recorder.recorded <= 4, "one graph a size, not one a step"
    for prompt, deltas in zip(prompts, answers, strict=True):
        tokens = tokens_of(deltas)
        logs = torch.log_softmax(plain_logits(prompt + tokens)[len(prompt) - 1 : -1].double(), -1)
        told = [logprob for delta in deltas for logprob in delta.logprobs]
        for row, token, logprob in zip(logs, tokens, told, strict=True):
            assert logprob.value == pytest.approx(float(row[token]), abs=1e-3)
            assert float(row.max() - row[token]) < 2e-3


def test_a_block_can_be_moved() -> None:
    """Spilling works on this cache's layout too."""
    cache = PagedCache(2, 4, 16, Heads(4, 2, 16), torch.bfloat16, CPU)
    cache.write(1, torch.arange(32, 48), torch.randn(16, 4, 16))
    cache.write_block(1, cache.read_block(2))
    assert torch.equal(cache.layers[1][:, 1], cache.layers[1][:, 2])
    assert cache.layers[1][:, 1].any()
    assert cache.read_block(2).numel() == cache.block_bytes


def test_the_kernel_takes_these_shapes() -> None:
    """torch's own varlen_attn on tensors without data: a mixed step, then a padded one that decodes."""
    heads, there = Heads(9, 3, 64), torch.device("meta")
    cache = PagedCache(1, 40, 16, heads, torch.bfloat16, there)
    attention = PagedAttention(heads, varlen_attn)
    spans = [Span(0, 1, 300, list(range(1, 20)), True), Span(1, 90, 0, list(range(20, 26)), False)]
    plan = attention.plan(spans, cache)
    assert (plan.most_rows, plan.most_keys, tuple(plan.tables.shape)) == (90, 301, (2, 19))
    out = attention(0, torch.empty(96, 9, 64, device=there), cache, plan)
    assert (tuple(out.shape), out.dtype) == ((96, 9 * 64), torch.float32)


def test_without_a_gpu_it_says_so() -> None:
    """A device that is not there is a named error."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    for name, why in (("cuda:0", "no such GPU"), ("mps:0", "no such GPU"), ("abacus", "abacus")):
        with pytest.raises(KindUnavailable, match=why):
            load_model(CONFIG, TensorWeights(tensors()), device=name)
    assert model("fp32").device == CPU
