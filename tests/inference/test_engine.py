"""The engine over the tiny model: no way of computing an answer changes it, and every token is counted once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.ask import Ask, Delta, Door, QueueFull, Stopped
from inference.engine import Engine
from inference.grammar import Grammar, json_schema
from inference.model import Llama
from inference.sampling import Sampling
from inference.scheduler import FAST, STANDARD, Lane, Limits, Request
from inference.storage import Storage
from inference.weights import TensorWeights
from tests.inference.tiny import CONFIG, model, plain_logits, run, tensors, tokenizer, tokens_of

GREEDY = Sampling(temperature=0)


class _Broken(Grammar):
    def __init__(self) -> None: ...

    def forbid(self, row: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a form that cannot be followed")


_BROKEN = _Broken()


@contextmanager
def _engine(kind: str = "fp32", kv_tokens: int = 2048, spill: dict[str, Any] | None = None, **options: Any) -> Iterator[Engine]:
    storage = Storage(model(kind), kv_tokens, torch.float32, **(spill or {}))
    engine = Engine(model(kind), tokenizer(), storage, threads=1, **options)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def _ask(prompt: list[int], most: int = 12, lane: Lane = STANDARD, **options: Any) -> Ask:
    return Ask(prompt=prompt, most=most, lane=lane, **({"sampling": GREEDY, "ignore_eos": True} | options))


def _prompts(chance: random.Random, count: int, longest: int) -> list[list[int]]:
    """Some share a beginning, some are one token long."""
    shared = [chance.randrange(3, 259) for _ in range(longest // 2)]
    return [
        shared[: chance.randrange(len(shared))]
        + [chance.randrange(3, 259) for _ in range(chance.randint(1, longest // 2))]
        for _ in range(count)
    ]


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False))
def test_paged_batched_and_cached_is_the_plain_forward(chance: random.Random) -> None:
    """In fp32 every drawn token is the plain forward's argmax, or a near tie, with its log probability to 1e-3."""
    limits = Limits(alone=chance.choice((3, 40, 256)), shared=chance.choice((1, 16, 128)), fast=chance.choice((16, 64)))
    prompts = _prompts(chance, chance.randint(1, 6), 160)
    with _engine(kv_tokens=chance.choice((512, 2048)), limits=limits) as engine:
        sampling = Sampling(temperature=0, logprobs=1)
        asks = [_ask(prompt, lane=chance.choice((FAST, STANDARD)), sampling=sampling) for prompt in prompts]
        answers = run(engine, asks)
    for prompt, deltas in zip(prompts, answers, strict=True):
        tokens = tokens_of(deltas)
        logits = plain_logits(prompt + tokens)[len(prompt) - 1 : -1].double()
        logs = torch.log_softmax(logits, -1)
        told = [logprob for delta in deltas for logprob in delta.logprobs]
        for row, token, logprob in zip(logs, tokens, told, strict=True):
            assert logprob.value == pytest.approx(float(row[token]), abs=1e-3)
            assert float(row.max() - row[token]) < 2e-3


class _Guess:
    """Proposes whatever it is told to, to find out whether drafts change answers."""

    def __init__(self, chance: random.Random, truth: list[int] | None) -> None:
        self._chance, self._truth = chance, truth

    def propose(self, tokens: list[int], most: int) -> list[int]:
        if self._truth is not None and self._chance.random() < 0.7:
            return self._truth[len(tokens) : len(tokens) + most]
        return [self._chance.randrange(259) for _ in range(most)]

    def close(self) -> None:
        pass


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(0, 12), st.sampled_from([0.0, 0.8]))
def test_the_fast_lane_says_what_the_standard_lane_says(chance: random.Random, drafts: int, temperature: float) -> None:
    """Same prompt, same seed: same tokens, for n-grams, for junk and for drafts that are mostly right, beside others."""
    if not model("auto").exact:
        pytest.skip("kernels are not exact on this machine, and /health says so")
    chance = random.Random(chance.getrandbits(32))  # hypothesis' own stops the thread that draws too much from it
    sampling = Sampling(temperature=temperature, seed=5, logprobs=0)
    prompts = _prompts(chance, 3, 120)
    with _engine("auto") as engine:
        want = [run(engine, [_ask(prompt, 24, sampling=sampling)])[0] for prompt in prompts]
        truths = {tuple(prompt): prompt + tokens_of(deltas) for prompt, deltas in zip(prompts, want, strict=True)}
        kind = chance.choice(("n-gram", "junk", "truth"))
        submitted = engine.scheduler.add

        def add(request: Request) -> None:
            if kind != "n-gram":
                request.proposer = _Guess(chance, truths[tuple(request.tokens)] if kind == "truth" else None)
            request.drafting._start = request.drafting._length = request.drafting._most = drafts
            submitted(request)

        engine.scheduler.add = add  # type: ignore[method-assign]
        got = run(engine, [_ask(prompt, 24, FAST, sampling=sampling) for prompt in prompts])
    for slow, fast in zip(want, got, strict=True):
        assert tokens_of(fast) == tokens_of(slow)
        logprobs = ([logprob.value for delta in deltas for logprob in delta.logprobs] for deltas in (fast, slow))
        assert next(logprobs) == next(logprobs), "bit for bit"


def test_company_and_chunks_change_nothing() -> None:
    """With exact kernels an answer has the same tokens alone, in a crowd, in small chunks and after preemptions."""
    if not model("auto").exact:
        pytest.skip("kernels are not exact on this machine, and /health says so")
    chance = random.Random(8)
    asks = [_ask(prompt, 30, sampling=Sampling(seed=4)) for prompt in _prompts(chance, 8, 150)]
    with _engine("auto") as engine:
        alone = [tokens_of(run(engine, [ask])[0]) for ask in asks]
    with _engine("auto", limits=Limits(alone=20, shared=11)) as engine:
        assert [tokens_of(deltas) for deltas in run(engine, asks)] == alone


def test_preemption_loses_nothing() -> None:
    """A pool too small for all: some are put back, all end, blocks return, and usage is of the first admission."""
    asks = [_ask([3 + index] * 100, 60) for index in range(6)]
    with _engine(kv_tokens=512, limits=Limits(reserve_blocks=0)) as engine:
        answers = run(engine, asks)
        assert engine.scheduler.preemptions > 0
        assert engine.scheduler.pool.counts().held == 0
    assert all(len(tokens_of(deltas)) == 60 and deltas[-1].usage.prompt == 100 for deltas in answers)


def _counted(engine: Engine, tier: str) -> tuple[float, float, float]:
    names = ("prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total")
    prompt, cached, output = (engine.tally.metrics.value(name, service_tier=tier) for name in names)
    return prompt, cached, output


def test_counters_are_the_sum_of_the_usage() -> None:
    """Per tier, prompt, cached and generated tokens agree, and what was not cached was computed once."""
    chance = random.Random(2)
    with _engine() as engine:
        prompts = _prompts(chance, 12, 150)
        asks = [_ask(prompt, chance.randint(1, 20), chance.choice((FAST, STANDARD))) for prompt in prompts]
        answers = run(engine, asks)
        for lane in (FAST, STANDARD):
            usages = [deltas[-1].usage for deltas, ask in zip(answers, asks, strict=True) if ask.lane is lane]
            sums = [sum(getattr(usage, field) for usage in usages) for field in ("prompt", "cached", "output")]
            assert list(_counted(engine, lane.tier)) == sums
        computed = engine.tally.metrics.value("computed_rows_total", kind="prefill")
        assert computed == sum(deltas[-1].usage.prompt - deltas[-1].usage.cached for deltas in answers)
    for deltas, ask in zip(answers, asks, strict=True):
        assert deltas[-1].usage.output == len(tokens_of(deltas)) == ask.most
        assert deltas[-1].reason == "length"
        assert "".join(delta.text for delta in deltas) == tokenizer().decode(tokens_of(deltas))


@pytest.mark.parametrize("after", [0, 1, 4], ids=["at once", "after a token", "after four"])
def test_an_abort_frees_the_blocks_and_is_counted(after: int) -> None:
    """Leaving the stream ends the request; what it had produced until then is in the counters."""

    async def leave(engine: Engine) -> None:
        stream = engine.submit(_ask([5] * 200, 300, FAST), "x")
        if not after:
            stream.abort()
        seen = 0
        async for delta in stream:
            seen += len(delta.tokens)
            if seen >= max(1, after):
                break
        stream.abort()
        for _ in range(200):
            if engine.tally.metrics.value("request_success_total"):
                break
            await asyncio.sleep(0.01)
        assert not engine.scheduler.running
        prompt, _, output = _counted(engine, "priority")
        assert output >= seen
        assert prompt == (200 if output else 0)
        assert engine.tally.metrics.value("request_success_total", finished_reason="abort") == 1

    with _engine() as engine:
        asyncio.run(leave(engine))
        assert engine.scheduler.pool.counts().held == 0


def test_one_who_cannot_be_told_does_not_silence_the_others() -> None:
    """An answer poured out ends with its last delta; an error in the telling is that answer's alone."""

    async def pour(engine: Engine) -> tuple[BaseException | None, list[Delta]]:
        told: list[Delta] = []

        def fail(_: Delta) -> None:
            raise OSError("nobody there")

        streams = [engine.submit(_ask([5] * 50), str(index)) for index in range(2)]
        failed, _ = await asyncio.gather(streams[0].pour(fail), streams[1].pour(told.append), return_exceptions=True)
        return failed, told

    with _engine() as engine:
        failed, told = asyncio.run(pour(engine))
        assert isinstance(failed, OSError)
        assert tokens_of(told) == tokens_of(run(engine, [_ask([5] * 50)])[0])
        assert told[-1].reason == "length"


def test_a_failing_step_ends_its_requests_only() -> None:
    """An exception in the model is an error for those in the step; the engine goes on, nothing is lost."""
    with _engine() as engine:
        forward, engine.model.forward = engine.model.forward, None  # type: ignore[assignment,method-assign]
        try:
            assert run(engine, [_ask([5] * 40)])[0][-1].reason == "error"
        finally:
            engine.model.forward = forward  # type: ignore[method-assign]
        assert engine.scheduler.pool.counts().held == 0
        assert len(tokens_of(run(engine, [_ask([5] * 40)])[0])) == 12


def test_a_failing_draw_ends_its_request_only() -> None:
    """What goes wrong in drawing one answer is that answer's error; those beside it and those after it are served."""
    with _engine() as engine:
        want = tokens_of(run(engine, [_ask([5] * 40)])[0])
        failed, beside = run(engine, [_ask([5] * 40, grammar=_BROKEN), _ask([5] * 40)])
        assert failed[-1].reason == "error"
        assert tokens_of(beside) == tokens_of(run(engine, [_ask([5] * 40)])[0]) == want
        assert engine.scheduler.pool.counts().held == 0


def test_a_dead_thread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the thread itself fails, whoever waits gets an end, the next one a refusal, and nobody waits for ever."""
    with _engine() as engine:
        monkeypatch.setattr(engine.scheduler, "plan", lambda now: [][1])
        assert run(engine, [_ask([5] * 40)])[0][-1].reason == "abort"
        engine._thread.join(20)
        assert engine.stopped
        with pytest.raises(Stopped):
            run(engine, [_ask([5] * 40)])


@pytest.mark.parametrize("form", [None, {"type": "integer"}], ids=["free", "a form"])
def test_a_token_without_words_is_never_said(form: dict[str, Any] | None) -> None:
    """A model may have more rows than its tokenizer has tokens, here such that they would win: they are not drawn."""
    more = {name: tensor.clone() for name, tensor in tensors().items()}
    more["token_embd.weight"] = torch.cat((more["token_embd.weight"], 9 * more["token_embd.weight"][5:70]))
    with torch.inference_mode():
        padded = Llama(replace(CONFIG, vocabulary=CONFIG.vocabulary + 65), TensorWeights(more), "fp32")
    engine = Engine(padded, tokenizer(), Storage(padded, 1024, torch.float32), threads=1)
    engine.start()
    try:
        grammar = json_schema(form, tokenizer()) if form is not None else None
        deltas = run(engine, [_ask([5] * 40, grammar=grammar)])[0]
        assert deltas[-1].reason in ("length", "stop")
        assert all(token < tokenizer().size for token in tokens_of(deltas))
        assert form is None or "".join(delta.text for delta in deltas).lstrip("-").isdigit()
    finally:
        engine.stop()


@pytest.mark.parametrize("lane", [FAST, STANDARD], ids=["fast", "standard"])
def test_a_stop_string_ends_text_and_count(lane: Lane) -> None:
    """Nothing behind the stop leaks, also not from the same verify step, and usage counts to the token that stopped."""
    with _engine() as engine:
        whole = run(engine, [_ask([70] * 30, 40, lane)])[0]
        tokens, text = tokens_of(whole), "".join(delta.text for delta in whole)
        stop = tokenizer().decode(tokens[10:12])
        deltas = run(engine, [_ask([70] * 30, 40, lane, stops=(stop,))])[0]
    assert deltas[-1].reason == "stop"
    assert "".join(delta.text for delta in deltas) == text[: text.find(stop)]
    assert deltas[-1].usage.output == len(tokens_of(deltas)) <= 12


def test_a_full_queue_refuses_at_the_door() -> None:
    """Beyond so many waiting requests or tokens the answer is a refusal with a time, and a counter."""

    async def crowd(engine: Engine) -> None:
        streams = [engine.submit(_ask([5] * 50, 200), str(index)) for index in range(2)]
        with pytest.raises(QueueFull) as refused:
            streams.extend(engine.submit(_ask([6] * 50, 200), f"more {index}") for index in range(20))
        assert refused.value.retry_after >= 1
        for stream in streams:
            stream.abort()

    with _engine(door=Door(requests=3, tokens=10_000)) as engine:
        asyncio.run(crowd(engine))
        assert engine.tally.metrics.value("admission_rejections_total", reason="requests") == 1


def test_a_reset_forgets_the_cache() -> None:
    """After it the same prompt is computed anew; another salt never finds it in the first place."""
    with _engine() as engine:
        cached = []
        for salt in ("", "", "s", "s"):
            cached.append(run(engine, [_ask([9] * 100, salt=salt)])[0][-1].usage.cached)
        engine.reset_prefix_cache()
        cached.append(run(engine, [_ask([9] * 100)])[0][-1].usage.cached)
    assert cached == [0, 96, 0, 96, 0]


def test_a_spilled_prefix_is_read_back_and_counted(tmp_path: Path) -> None:
    """What others pushed out of the pool is a hit later, with the tokens of the first time, in its own counter too."""
    with _engine(kv_tokens=512, spill={"spill_mib": 1, "spill_dir": tmp_path}) as engine:
        first = run(engine, [_ask([9] * 200)])[0]
        for other in range(4):
            run(engine, [_ask([10 + other] * 300)])
        again = run(engine, [_ask([9] * 200)])[0]
        assert (first[-1].usage.cached, again[-1].usage.cached) == (0, 192)
        assert tokens_of(again) == tokens_of(first)
        assert engine.tally.metrics.value("kv_spill_hit_tokens_total") == 192
        assert engine.tally.metrics.value("prefix_cache_hits_total") == 192
        assert engine.tally.metrics.value("kv_spill_stored_tokens_total") >= 192
    assert not list(tmp_path.iterdir()), "the file has no name"
