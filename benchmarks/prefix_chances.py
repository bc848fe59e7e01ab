"""How likely each kind of piece of a prompt is asked for again, and when: counted afterwards, of this very traffic.

A kind is how often a piece has been asked for, and of the prompt that it came with whether that was the first of a
conversation, how much of it was new, and whether the piece was its first or last. From the chances follows what a token of
the piece will cost from now on for each way to leave it, if every later choice is the best one.
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
_FEW = 5
_AHEAD = 64
"""Of the next uses of a piece so many are looked at for one that goes on in another way."""
_ROUNDS, _SAME = 2_000, 1e-6


class Kind(NamedTuple):
    """Of a piece at one of its uses."""

    uses: int
    opening: bool
    size: int
    first: bool = False
    """Whether it is the first that can be stored, which many prompts may share."""
    last: bool = False
    """Of the prompt that it came with."""


class At(NamedTuple):
    """A use of a piece: number of the prompt, when, of what kind it was then, and the block that followed."""

    number: int
    at_s: float
    kind: Kind
    following: bytes


@dataclass(slots=True)
class Piece:
    tokens: int
    uses: list[At] = field(default_factory=list)


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
            first = piece.uses[0].kind if piece.uses else Kind(0, opening, fresh.bit_length(), n == ends[0], n == ends[-1])
            kind = first._replace(uses=min(len(piece.uses), _MOST_USES))
            following = prompt.blocks[n + 1].digest if n + 1 < len(prompt.blocks) else b""
            piece.uses.append(At(number, at_s, kind, following))
            found.uses[-1].append(Use(n, piece.tokens, kind))
            before = block.tokens
    found.pieces = list(pieces.values())
    return found


@dataclass(slots=True)
class _Seen:
    """Tokens of a kind, and what became of them: (next kind, the shortest lifetime that outlived the wait) -> tokens."""

    tokens: float = 0.0
    uses: int = 0
    after: dict[tuple[Kind, float], float] = field(default_factory=lambda: defaultdict(float))
    parted: float = 0.0
    """Tokens of which a use came within the longest lifetime that did not go on as this one did."""


class Chances:
    """What pieces of all kinds have shown."""

    def __init__(self, pieces: Iterable[Piece], prices: Prices) -> None:
        self.forms = list(forms_of(prices))
        self._seen = self._counted(pieces)
        self._ahead = self._best()

    def costs(self, kind: Kind) -> list[float]:
        """By form: what a token costs from this use on that is not stored yet."""
        known = self._ahead.get(self._known(kind)) or [0.0] * len(self.forms)
        return [form.write + later for form, later in zip(self.forms, known, strict=True)]

    def parts(self, kind: Kind) -> float:
        """The chance that a prompt comes within the longest lifetime which has it, but not what follows it here."""
        known = self._seen.get(self._known(kind))
        return known.parted / known.tokens if known else 0.0

    def _known(self, kind: Kind) -> Kind:
        """The kind itself, or of any size where few of it were seen."""
        seen = self._seen.get(kind)
        return kind if seen and seen.uses >= _FEW else kind._replace(size=_ANY)

    def _counted(self, pieces: Iterable[Piece]) -> Mapping[Kind, _Seen]:
        seen: dict[Kind, _Seen] = defaultdict(_Seen)
        longest_s = max(form.life_s for form in self.forms)
        for piece in pieces:
            parted = [_parts(piece.uses, n, longest_s) for n in range(len(piece.uses))]
            for any_size in (False, True):
                uses = [(at.at_s, at.kind._replace(size=_ANY) if any_size else at.kind) for at in piece.uses]
                for (at_s, kind), (next_s, following) in pairwise(uses):
                    within_s = min([form.life_s for form in self.forms if next_s - at_s <= form.life_s], default=float("inf"))
                    seen[kind].after[following, within_s] += piece.tokens
                for (_, kind), parts in zip(uses, parted, strict=True):
                    seen[kind].tokens += piece.tokens
                    seen[kind].uses += 1
                    seen[kind].parted += piece.tokens * parts
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


def _parts(uses: Sequence[At], use: int, life_s: float) -> bool:
    """Whether one of the next uses in that time goes on in another way than this one."""
    at_s, following = uses[use].at_s, uses[use].following
    for later in uses[use + 1 : use + 1 + _AHEAD]:
        if later.at_s - at_s > life_s:
            break
        if later.following != following:
            return True
    return False


def _least(ahead: Sequence[float], forms: Sequence[Form]) -> float:
    return min([form.write + later for form, later in zip(forms, ahead, strict=True)])
