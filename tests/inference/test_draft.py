"""Drafts by a second model: the answer stays the first one's, whatever the second says, and no block is lost."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from inference.ask import Ask
from inference.draft import DraftModel
from inference.engine import Engine
from inference.model import Llama
from inference.sampling import Sampling
from inference.scheduler import FAST, STANDARD
from inference.storage import Storage
from inference.weights import TensorWeights
from tests.inference.tiny import CONFIG, model, run, tensors, tokenizer, tokens_of


def _other() -> Llama:
    """The tiny model with its first layer only."""
    with torch.inference_mode():
        return Llama(dataclasses.replace(CONFIG, layers=1), TensorWeights(tensors()), "fp32")


@pytest.mark.parametrize(("sibling", "good"), [(model("fp32"), True), (_other(), False)], ids=["itself", "one layer"])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(temperature=0.8, seed=3)], ids=["greedy", "sampled"])
def test_the_answer_is_the_big_models(sibling: Llama, good: bool, sampling: Sampling) -> None:
    """Both lanes give the same tokens; a draft model that is the model itself is right on every greedy token."""
    draft = DraftModel(sibling, 2048, torch.float32)
    engine = Engine(model("fp32"), tokenizer(), Storage(model("fp32"), 2048, torch.float32), threads=1, draft=draft)
    engine.start()
    try:
        for length in (1, 40, 300):
            prompt = [3 + (7 * index) % 250 for index in range(length)]
            asks = [Ask(prompt=prompt, most=40, lane=lane, sampling=sampling, ignore_eos=True) for lane in (STANDARD, FAST)]
            slow, fast = (tokens_of(run(engine, [ask])[0]) for ask in asks)
            assert slow == fast
        drafted = engine.tally.metrics.value("spec_decode_num_draft_tokens_total")
        accepted = engine.tally.metrics.value("spec_decode_num_accepted_tokens_total")
        assert drafted > 0
        if good and sampling.temperature == 0:
            assert accepted == drafted
    finally:
        engine.stop()
    assert draft.pool.counts().held == 0


def test_a_full_pool_means_no_drafts() -> None:
    """Where the small model's cache has no room the request goes on without."""
    proposer = DraftModel(model("fp32"), 64, torch.float32).proposer()
    assert len(proposer.propose([5] * 40, 3)) == 3
    assert proposer.propose([5] * 80, 3) == []
    proposer.close()
    assert len(proposer.propose([5] * 40, 3)) == 3
