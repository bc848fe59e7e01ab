"""Logits to tokens, and the check of drafts.

Every draw belongs to a (seed, position) pair, not to a stream: the number of drafts, the batch and a preemption never
shift later draws. That makes verification simple. Each row draws its token as if there were no draft, and the draft
counts while it equals what was drawn. For drafts that are single guesses this is exactly rejection sampling: the guess
is taken with probability p, and otherwise the token follows p without it; and with one seed the fast lane says what the
standard lane says, sampled or greedy.
"""

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.grammar import Grammar

_NUCLEUS_GUESS = 256


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request wants its tokens drawn. Temperature 0 is greedy; `logprobs` is None or how many to list."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: int | None = None

    @property
    def plain(self) -> bool:
        """The biggest logit, untouched."""
        return self.temperature == 0 and not self.adjusts

    @property
    def adjusts(self) -> bool:
        """Logits are changed before the draw."""
        return bool(self.presence or self.frequency or self.repetition != 1 or self.bias)


@dataclass(frozen=True, slots=True)
class Logprob:
    """The model's own log probability (before temperature and penalties) of a token, and of the likeliest ones."""

    token: int
    value: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a verified step yields: the accepted drafts and the token after them."""

    tokens: tuple[int, ...]
    logprobs: tuple[Logprob, ...] = ()


class Sampler:
    """Draws for one request; remembers which tokens it has seen, for the penalties."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int] = (), grammar: Grammar | None = None) -> None:
        self.sampling, self._grammar = sampling, grammar
        self._prompt = set(prompt) if sampling.repetition != 1 else set()
        self._counts: Counter[int] = Counter()

    def verify(self, logits: Tensor, best: Sequence[int], position: int, drafts: Sequence[int]) -> Drawn:
        """Rows for the newest token and each draft; `best` are their argmaxes, `position` where the first draw goes."""
        tokens: list[int] = []
        logprobs: list[Logprob] = []
        for row, (argmax, draft) in enumerate(zip(best, [*drafts, None], strict=True)):
            plain = self.sampling.plain and self._grammar is None
            token = argmax if plain else self._draw(logits[row], position + row)
            tokens.append(token)
            if self._grammar is not None:
                self._grammar.accept(token)
            self._counts[token] += 1
            if self.sampling.logprobs is not None:
                logprobs.append(_logprob(logits[row], token, self.sampling.logprobs))
            if token != draft or (self._grammar is not None and self._grammar.complete):
                break
        return Drawn(tuple(tokens), tuple(logprobs))

    def _draw(self, row: Tensor, position: int) -> int:
        if self.sampling.adjusts:
            row = self._adjust(row.clone())
        if self._grammar is not None:
            row = self._grammar.forbid(row)
        if self.sampling.temperature == 0:
            return int(row.argmax())
        return pick(row, self.sampling, uniform(self.sampling.seed, position))

    def _adjust(self, row: Tensor) -> Tensor:
        """Penalties on what was said (repetition also on the prompt), then the caller's bias."""
        sampling = self.sampling
        if sampling.repetition != 1 and (seen := list(self._prompt | set(self._counts))):
            values = row[seen]
            row[seen] = torch.where(values > 0, values / sampling.repetition, values * sampling.repetition)
        if (sampling.presence or sampling.frequency) and self._counts:
            said = list(self._counts)
            times = torch.tensor([float(self._counts[token]) for token in said])
            row[said] -= sampling.frequency * times + sampling.presence
        if sampling.bias:
            row[list(sampling.bias)] += torch.tensor(list(sampling.bias.values()))
        return row


def pick(row: Tensor, sampling: Sampling, u: float) -> int:
    """The token at `u` (0 to 1) of the distribution that temperature, top-k, top-p and min-p leave of the logits."""
    row = row.double().div_(sampling.temperature)
    if not sampling.top_k and sampling.top_p >= 1 and not sampling.min_p:
        return _at(torch.softmax(row, -1), u)
    probabilities, order = _sorted(row, sampling)
    if sampling.min_p:
        probabilities = probabilities[probabilities >= sampling.min_p * probabilities[0]]
    return int(order[_at(probabilities, u)])


def _sorted(row: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """The kept probabilities, biggest first, and their tokens; sorts the whole vocabulary only if it must."""
    if sampling.top_k:
        values, order = row.topk(min(sampling.top_k, len(row)))
        probabilities = torch.softmax(values, -1)
    else:
        values, order = row.topk(min(_NUCLEUS_GUESS, len(row)))
        probabilities = (values - torch.logsumexp(row, -1)).exp()
        if sampling.min_p or float(probabilities.sum()) < sampling.top_p:
            values, order = row.sort(descending=True)
            probabilities = torch.softmax(values, -1)
    if sampling.top_p < 1:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities[before < sampling.top_p]
    return probabilities, order


def _at(probabilities: Tensor, u: float) -> int:
    sums = probabilities.cumsum(-1)
    return min(int(torch.searchsorted(sums, u * float(sums[-1]), right=True)), len(probabilities) - 1)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    digest = hashlib.blake2b(struct.pack("<qq", seed, position), digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> 11) / (1 << 53)


def _logprob(row: Tensor, token: int, most: int) -> Logprob:
    logs = torch.log_softmax(row.double(), -1)
    top: tuple[tuple[int, float], ...] = ()
    if most:
        values, order = logs.topk(most)
        top = tuple(zip(order.tolist(), values.tolist(), strict=True))
    value = float(logs[token])
    return Logprob(token, value if math.isfinite(value) else -9999.0, top)
