"""What goes into the engine and what comes out: an ask, its deltas, and how busy the engine is."""

from collections.abc import Callable
from dataclasses import dataclass, field

from inference.grammar import Grammar
from inference.sampling import Logprob, Sampling
from inference.scheduler import STANDARD, Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What to generate, in the engine's words."""

    prompt: list[int]
    most: int
    lane: Lane = STANDARD
    sampling: Sampling = field(default_factory=Sampling)
    stops: tuple[str, ...] = ()
    cut: Callable[[str], int | None] | None = None
    salt: str = ""
    priority: int = 0
    ignore_eos: bool = False
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; `cached` are part of `prompt`."""

    prompt: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class Delta:
    """What a step added: text that is now certain, the tokens behind it; at the end the reason."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[Logprob, ...]
    usage: Usage
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is."""

    running: dict[str, int]
    waiting: dict[str, int]
    waiting_tokens: int
    blocks: int
    free_blocks: int
    cached_blocks: int
    prefill_tokens_per_s: float


class QueueFull(Exception):
    """Refused at the door; `retry_after` seconds until the queue is likely shorter."""

    def __init__(self, reason: str, retry_after: int) -> None:
        super().__init__(f"the queue is full ({reason})")
        self.reason, self.retry_after = reason, retry_after


class Stopped(Exception):
    """The engine stops and takes nothing more."""


@dataclass(frozen=True, slots=True)
class Door:
    """How much may wait in each lane: a flood in one does not shut out the other."""

    requests: int = 64
    tokens: int = 262_144
