"""Drafts by a smaller model of the same vocabulary, for checkpoints that have such a sibling.

It keeps keys and values of its own in a pool of its own. A request's proposer catches up with the accepted tokens, a
chunk at a time so that it never stalls the others for long, and then runs ahead greedily. Whatever it says, the answer
is the big model's: drafts are checked like those of any other proposer.
"""

from collections.abc import Sequence

import torch

from inference.attention import Span
from inference.blocks import BLOCK, BlockPool
from inference.model import Batch, Model

_CHUNK = 256


class DraftModel:
    """The small model and its cache; called on the engine's thread only."""

    def __init__(self, model: Model, kv_tokens: int, dtype: torch.dtype = torch.float16) -> None:
        self.model, self.pool = model, BlockPool(max(1, kv_tokens // BLOCK))
        self._cache = model.cache(self.pool.blocks, BLOCK, dtype)

    def proposer(self) -> "DraftProposer":
        """For one request."""
        return DraftProposer(self)

    def forward(self, table: Sequence[int], tokens: Sequence[int], start: int) -> int:
        """Compute tokens from position `start` on; the likeliest next one."""
        count = len(tokens)
        batch = Batch(list(tokens), [Span(0, count, start, table, decode=count == 1)], [count - 1])
        return int(self.model.forward(batch, self._cache).argmax())


class DraftProposer:
    """What the small model would say next."""

    def __init__(self, draft: DraftModel) -> None:
        self._draft = draft
        self._table: list[int] = []
        self._computed: list[int] = []  # the tokens whose keys are in the cache

    def propose(self, tokens: Sequence[int], most: int) -> list[int]:
        """At most so many tokens; none while it is still catching up, or where its pool is full."""
        same = next((at for at, (a, b) in enumerate(zip(self._computed, tokens, strict=False)) if a != b), None)
        del self._computed[min(len(tokens) - 1, len(self._computed) if same is None else same) :]
        if most < 1 or not self._room(len(tokens) + most):
            return []
        lacking = list(tokens[len(self._computed) :])
        newest = self._run(lacking[:_CHUNK])
        if len(lacking) > _CHUNK:
            return []
        drafts = [newest]
        while len(drafts) < most:
            drafts.append(self._run(drafts[-1:]))
        return drafts

    def close(self) -> None:
        """The request ended or was put back: its blocks are free."""
        self._draft.pool.release(self._table)
        self._table, self._computed = [], []

    def _run(self, tokens: list[int]) -> int:
        newest = self._draft.forward(self._table, tokens, len(self._computed))
        self._computed += tokens
        return newest

    def _room(self, tokens: int) -> bool:
        if tokens > self._draft.model.config.context:
            return False
        lacking = -(-tokens // BLOCK) - len(self._table)
        blocks = self._draft.pool.take(lacking) if lacking > 0 else []
        self._table += blocks or []
        return blocks is not None
