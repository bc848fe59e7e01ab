"""What knowing every chance is worth: the best plan that knows how likely each kind of piece is asked for again, and when, but
not which one will be.

A kind is how often a piece has been asked for, whether it came with the first request of a conversation, and how much new
prompt came with it. Its chances are those of this very traffic, counted afterwards, so a plan that has to learn them while
the traffic runs cannot hope for better; limits on marks are left out. What lies between this and the plan that knows the
future (`prefix_clairvoyant`) can be had by foresight only.
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
_ANY, _SHARED = -1, -1
"""A size that stands for all; and the session of pieces that several ask for."""
_ROUNDS, _SAME = 2_000, 1e-6


class Kind(NamedTuple):
    """Of a piece at one of its uses."""

    uses: int
    opening: bool
    size: int


@dataclass(slots=True)
class _Piece:
    tokens: int
    uses: list[tuple[float, Kind]] = field(default_factory=list)


@dataclass(slots=True)
class _Seen:
    """Tokens of a kind, and what became of them: (next kind, seconds waited) -> tokens."""

    tokens: float = 0.0
    after: dict[tuple[Kind, int], float] = field(default_factory=lambda: defaultdict(float))


def informed(prompts: Sequence[tuple[float, Prompt]], prices: Prices, *, by_marks: bool = True) -> float:
    """Cost in uncached input tokens; `prompts` are (seconds, prompt) in order of time. `by_marks`: a prefix ends where a mark
    may stand."""
    pieces, rest = _pieces(prompts, prices.minimum, by_marks=by_marks)
    forms = list(_forms(prices))
    ahead = _ahead(_seen(pieces, forms), forms)
    return rest + sum(piece.tokens * _cost(piece, forms, ahead) for piece in pieces)


def from_others(
    prompts: Sequence[tuple[float, Prompt]], sessions: Sequence[int], prices: Prices, *, by_marks: bool = True
) -> float:
    """The same for a plan that knows the chances as all other sessions show them, not this one: where sessions are few, their
    own outcomes are most of what `informed` calls a chance. `sessions`: of each prompt."""
    pieces, rest = _pieces(prompts, prices.minimum, by_marks=by_marks)
    forms, session_at = list(_forms(prices)), dict[float, int]()
    for (at_s, _), session in zip(prompts, sessions, strict=True):
        session_at.setdefault(at_s, session)
    of_session: dict[int, list[_Piece]] = defaultdict(list)
    for piece in pieces:
        asking = {session_at[at_s] for at_s, _ in piece.uses}
        of_session[asking.pop() if len(asking) == 1 else _SHARED].append(piece)
    total = rest
    for session, own in of_session.items():
        kept = [some for other, some in of_session.items() if other != session or session == _SHARED]
        others = [piece for some in kept for piece in some]
        ahead = _ahead(_seen(others, forms), forms)
        total += sum(piece.tokens * _cost(piece, forms, ahead) for piece in own)
    return total


def _seen(pieces: Iterable[_Piece], forms: Sequence[_Form]) -> dict[Kind, _Seen]:
    """What became of the pieces, by kind, and by kind of any size."""
    seen: dict[Kind, _Seen] = defaultdict(_Seen)
    for piece in pieces:
        for any_size in (False, True):
            uses = [(at_s, kind._replace(size=_ANY) if any_size else kind) for at_s, kind in piece.uses]
            for (at_s, kind), (next_s, following) in pairwise(uses):
                seen[kind].after[following, _class(next_s - at_s, forms)] += piece.tokens
            for _, kind in uses:
                seen[kind].tokens += piece.tokens
    return seen


class _Form(NamedTuple):
    """A way to leave a piece: price now, and at what price it is read within how many seconds."""

    write: float
    read: float
    life_s: float


def _forms(prices: Prices) -> Iterator[_Form]:
    read, life_s = prices.automatic or (1.0, 0.0)
    yield _Form(1.0, read, life_s)
    for life_s, write in prices.writes.items():
        yield _Form(write, prices.read, life_s)


def _class(wait_s: float, forms: Sequence[_Form]) -> int:
    """A wait by which forms outlive it: the shortest lifetime that does, rounded to whole seconds; -1: none."""
    return int(min([form.life_s for form in forms if wait_s <= form.life_s], default=-1))


def _pieces(
    prompts: Sequence[tuple[float, Prompt]], minimum: int, *, by_marks: bool
) -> tuple[list[_Piece], float]:
    """All pieces with their uses, what lies below the minimum together with what reaches it; and tokens that never can."""
    pieces: dict[bytes, _Piece] = {}
    rest = 0.0
    for at_s, prompt in prompts:
        ends = [block for block in prompt.blocks if block.tokens >= minimum and (
            block.markable or not by_marks or block is prompt.blocks[-1])]  # fmt: skip
        if not ends:
            rest += prompt.tokens
            continue
        known = [block.digest in pieces for block in ends]
        fresh = prompt.tokens - max([block.tokens for block, old in zip(ends, known, strict=True) if old], default=0)
        opening, before = sum(known) < 2, 0
        for block in ends:
            piece = pieces.setdefault(block.digest, _Piece(block.tokens - before))
            first = piece.uses[0][1] if piece.uses else Kind(0, opening, fresh.bit_length())
            piece.uses.append((at_s, first._replace(uses=min(len(piece.uses), _MOST_USES))))
            before = block.tokens
    return list(pieces.values()), rest


def _ahead(seen: Mapping[Kind, _Seen], forms: Sequence[_Form]) -> dict[Kind, list[float]]:
    """For each kind and form what a token will cost after this use, by the best choice at every later one."""
    ahead = {kind: [0.0] * len(forms) for kind in seen}
    for _ in range(_ROUNDS):
        change = 0.0
        for kind, known in seen.items():
            for n, form in enumerate(forms):
                cost = 0.0
                for (following, life_s), tokens in known.after.items():
                    found = 0 <= life_s <= form.life_s
                    cost += tokens * (form.read + ahead[following][n] if found else _fresh(ahead[following], forms))
                cost /= known.tokens
                change, ahead[kind][n] = max(change, abs(cost - ahead[kind][n])), cost
        if change < _SAME:
            break
    return ahead


def _fresh(ahead: Sequence[float], forms: Sequence[_Form]) -> float:
    return min([form.write + later for form, later in zip(forms, ahead, strict=True)])


def _cost(piece: _Piece, forms: Sequence[_Form], ahead: Mapping[Kind, Sequence[float]]) -> float:
    """What a token of the piece really cost under the best plan."""
    total, held, last_s = 0.0, -1, 0.0
    for at_s, kind in piece.uses:
        if held >= 0 and at_s - last_s <= forms[held].life_s:
            total += forms[held].read
        else:
            known = ahead.get(kind) or ahead.get(kind._replace(size=_ANY)) or [0.0] * len(forms)
            costs = [form.write + later for form, later in zip(forms, known, strict=True)]
            held = costs.index(min(costs))
            total += forms[held].write
        last_s = at_s
    return total
