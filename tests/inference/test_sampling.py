"""Draws follow the distribution that was asked for, with or without drafts, and belong to their place."""

from __future__ import annotations

import math

import pytest
import torch

from inference.sampling import Sampler, Sampling, pick, uniform

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0, 1.5, 0.2])


def _expected(sampling: Sampling) -> torch.Tensor:
    """By the definition, sorting everything."""
    p = torch.softmax(LOGITS.double() / sampling.temperature, -1)
    order = p.argsort(descending=True)
    keep = torch.ones(len(p), dtype=torch.bool)
    if sampling.top_k:
        keep[order[sampling.top_k :]] = False
        p = torch.where(keep, p, 0.0) / p[keep].sum()
    running = 0.0
    for token in order.tolist():
        if running >= sampling.top_p:
            keep[token] = False
        running += float(p[token])
    keep &= p >= sampling.min_p * p.max()
    return torch.where(keep, p, 0.0) / p[keep].sum()


def _chi_square(counts: torch.Tensor, p: torch.Tensor) -> float:
    """The chance of so bad a fit, by the Wilson-Hilferty approximation."""
    assert counts[p == 0].sum() == 0
    want = p[p > 0] * counts.sum()
    x, k = float(((counts[p > 0] - want) ** 2 / want).sum()), int((p > 0).sum()) - 1
    if not k:
        return 1.0
    z = ((x / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return 0.5 * math.erfc(z / math.sqrt(2))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.6),
        Sampling(top_k=3),
        Sampling(top_p=0.7),
        Sampling(temperature=1.4, top_k=6, top_p=0.9),
        Sampling(min_p=0.3),
    ],
    ids=["plain", "cool", "top-k", "top-p", "all", "min-p"],
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    """10,000 draws fit what temperature, top-k, top-p and min-p leave."""
    counts = torch.bincount(
        torch.tensor([pick(LOGITS, sampling, uniform(11, i)) for i in range(10_000)]), minlength=len(LOGITS)
    ).double()
    assert _chi_square(counts, _expected(sampling)) > 0.001


@pytest.mark.parametrize("draft", [0, 6, 5], ids=["the likeliest", "a good one", "a bad one"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_p=0.8)], ids=["plain", "shaped"])
def test_drafts_keep_the_distribution(draft: int, sampling: Sampling) -> None:
    """The token after a verified draft, accepted or not, is distributed as without one."""
    rows, counts = torch.stack([LOGITS, LOGITS]), torch.zeros(len(LOGITS), dtype=torch.float64)
    for seed in range(6_000):
        drawn = Sampler(Sampling(temperature=sampling.temperature, top_p=sampling.top_p, seed=seed)).verify(
            rows, [0, 0], 5, [draft]
        )
        counts[drawn.tokens[0]] += 1
        assert (len(drawn.tokens) == 2) == (drawn.tokens[0] == draft)
    assert _chi_square(counts, _expected(sampling)) > 0.001


def test_a_draft_never_changes_what_is_said() -> None:
    """With one seed the tokens are the same for any drafts, penalties included."""
    sampling = Sampling(seed=3, presence=0.5, frequency=0.3, repetition=1.2, bias={4: 2.0})
    alone, position, want = Sampler(sampling, [1]), 0, []
    while len(want) < 40:
        want += alone.verify(LOGITS[None], [0], position + len(want), []).tokens
    drafted, got = Sampler(sampling, [1]), []
    while len(got) < 40:
        guess = want[len(got) : len(got) + 3] if len(got) % 3 else [7, 7, 7]
        rows = LOGITS.expand(len(guess) + 1, -1)
        got += drafted.verify(rows, [0] * (len(guess) + 1), position + len(got), guess).tokens
    assert got[:40] == want[:40]


def test_penalties_and_bias_move_the_argmax() -> None:
    """What was said becomes less likely, what the caller wants more; greedy follows."""
    sampler = Sampler(Sampling(temperature=0, presence=1.0))
    assert [sampler.verify(LOGITS[None], [0], i, []).tokens[0] for i in range(3)] == [0, 6, 0]
    assert Sampler(Sampling(temperature=0, bias={5: 50.0})).verify(LOGITS[None], [0], 0, []).tokens == (5,)


def test_logprobs_are_the_models_own() -> None:
    """They are taken before temperature, and the list is the likeliest first."""
    drawn = Sampler(Sampling(temperature=0.1, logprobs=2)).verify(LOGITS[None], [0], 0, [])
    logs = torch.log_softmax(LOGITS.double(), -1)
    assert drawn.logprobs[0].value == pytest.approx(float(logs[drawn.tokens[0]]))
    assert [token for token, _ in drawn.logprobs[0].top] == [0, 6]
