"""How likely each kind of piece of a prompt is asked for again, and when: counted afterwards, of this very traffic.

A kind is how often a piece has been asked for, and of the prompt that it came with whether that was the first of a
conversation, how much of it was new, and whether the piece was its last. From the chances follows what a token of the piece
will cost from now on for each way to leave it, if every later choice is the best one.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from benchmarks.prefix_oracle import Prices
from benchmarks.providers.prompt import Prompt

_MOST_USES = 8
_ANY = -1
"""A size that stands for all."""
_ROUNDS, _SAME = 2_000, 1e-6


class Kind(NamedTuple):
    """Of a piece at one of its uses."""

    uses: int
    opening: bool
    size: int
    last: bool = False


@dataclass(slots=True)
class Piece:
    """`uses`: number of the prompt, when, and of what kind it was then."""

    tokens: int
    uses: list[tuple[int, float, Kind]] = field(default_factory=list)


class Use(NamedTuple):
    """A piece in one prompt: the block that it ends with, and what is known of it at that moment."""

    block: int
    tokens: int
    kind: Kind


@dataclass(slots=True)
class Cut:
    """Prompts cut into their pieces. `rest`: tokens that can never be stored."""

    pieces: list[Piece]
    uses: list[list[Use]]
    rest: float


class Form(NamedTuple):
    """A way to leave a piece: price now, and at what price it is read within how many seconds."""

    write: float
    read: float
    life_s: float


def forms_of(prices: Prices) -> Iterator[Form]:
    """Not stored (unless the provider does so unasked) first, then each lifetime."""
    read, life_s = prices.automatic or (1.0, 0.0)
    yield Form(1.0, read, life_s)
    for life_s, write in prices.writes.items():
        yield Form(write, prices.read, life_s)


def cut(prompts: Sequence[tuple[float, Prompt]], minimum: int, *, by_marks: bool) -> Cut:
    """What lies below the minimum goes with what reaches it. `by_marks`: a prefix ends where a mark may stand."""
    pieces: dict[bytes, Piece] = {}
    found = Cut([], [], 0.0)
    for number, (at_s, prompt) in enumerate(prompts):
        ends = [n for n, block in enumerate(prompt.blocks) if block.tokens >= minimum and (
            block.markable or not by_marks or n == len(prompt.blocks) - 1)]  # fmt: skip
        found.uses.append([])
        if not ends:
            found.rest += prompt.tokens
            continue
        known = [prompt.blocks[n].digest in pieces for n in ends]
        fresh = prompt.tokens - max([prompt.blocks[n].tokens for n, old in zip(ends, known, strict=True) if old], default=0)
        opening, before = sum(known) < 2, 0
        for n in ends:
            block = prompt.blocks[n]
            piece = pieces.setdefault(block.digest, Piece(block.tokens - before))
            first = piece.uses[0][2] if piece.uses else Kind(0, opening, fresh.bit_length(), n == ends[-1])
            kind = first._replace(uses=min(len(piece.uses), _MOST_USES))
            piece.uses.append((number, at_s, kind))
            found.uses[-1].append(Use(n, piece.tokens, kind))
            before = block.tokens
    found.pieces = list(pieces.values())
    return found


@dataclass(slots=True)
class _Seen:
    """Tokens of a kind, and what became of them: (next kind, the shortest lifetime that outlived the wait) -> tokens."""

    tokens: float = 0.0
    after: dict[tuple[Kind, float], float] = field(default_factory=lambda: defaultdict(float))


class Chances:
    """What pieces of all kinds have shown."""

    def __init__(self, pieces: Iterable[Piece], prices: Prices) -> None:
        self.forms = list(forms_of(prices))
        self._seen = self._counted(pieces)
        self._ahead = self._best()

    def costs(self, kind: Kind) -> list[float]:
        """By form: what a token costs from this use on that is not stored yet."""
        known = self._ahead.get(kind) or self._ahead.get(kind._replace(size=_ANY)) or [0.0] * len(self.forms)
        return [form.write + later for form, later in zip(self.forms, known, strict=True)]

    def again(self, kind: Kind, life_s: float) -> float:
        """The chance that it is asked for within that time."""
        known = self._seen.get(kind) or self._seen.get(kind._replace(size=_ANY))
        if known is None:
            return 0.0
        return sum(tokens for (_, within_s), tokens in known.after.items() if within_s <= life_s) / known.tokens

    def _counted(self, pieces: Iterable[Piece]) -> Mapping[Kind, _Seen]:
        seen: dict[Kind, _Seen] = defaultdict(_Seen)
        for piece in pieces:
            for any_size in (False, True):
                uses = [(at_s, kind._replace(size=_ANY) if any_size else kind) for _, at_s, kind in piece.uses]
                for (at_s, kind), (next_s, following) in pairwise(uses):
                    within_s = min([form.life_s for form in self.forms if next_s - at_s <= form.life_s], default=float("inf"))
                    seen[kind].after[following, within_s] += piece.tokens
                for _, kind in uses:
                    seen[kind].tokens += piece.tokens
        return dict(seen)

    def _best(self) -> dict[Kind, list[float]]:
        """For each kind and form what a token will cost after this use, by the best choice at every later one."""
        forms, ahead = self.forms, {kind: [0.0] * len(self.forms) for kind in self._seen}
        for _ in range(_ROUNDS):
            change = 0.0
            for kind, known in self._seen.items():
                for n, form in enumerate(forms):
                    cost = 0.0
                    for (following, within_s), tokens in known.after.items():
                        later = ahead[following]
                        found = within_s <= form.life_s
                        cost += tokens * (form.read + later[n] if found else _least(later, forms))
                    cost /= known.tokens
                    change, ahead[kind][n] = max(change, abs(cost - ahead[kind][n])), cost
            if change < _SAME:
                break
        return ahead


def _least(ahead: Sequence[float], forms: Sequence[Form]) -> float:
    return min([form.write + later for form, later in zip(forms, ahead, strict=True)])
