"""Tokens and money before anyone has counted: text to tokens with a stated error, and the most that a call can cost.

The most is cheap to know: a byte-level BPE token covers at least one byte, so the length of the request's body bounds its
prompt. Counting text needs tiktoken, which is loaded at its first use; call `count` in a thread.
"""
from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import NamedTuple

import msgspec

from gateway.core.money import nanos_from_picos
from gateway.metering.prices import PriceBook

TEMPLATE_TOKENS = 64
"""What a chat template may add beyond the bytes of the JSON around the text."""
TOOLS_TOKENS = 1_024
"""What a provider's hidden tool instructions may add (Anthropic's are 300 to 800)."""
LINK_TOKENS = 20_000
"""The most that one image or file given by address may cost; embedded ones are bounded by their bytes."""
DEFAULT_MAX_OUTPUT = 128_000
"""Output bound of a model of which we know none."""


class Tokenizer(NamedTuple):
    """How to count for a family of models: tiktoken's count times `factor`, wrong by at most `margin` of it."""

    pattern: str
    encoding: str
    factor: float
    margin: float


TOKENIZERS = (
    # OpenAI's own: exact for text; the margin is the chat template. Hidden reasoning is in no text, so an estimate of a cut
    # answer of a reasoning model is a floor.
    Tokenizer("gpt-3.5*", "cl100k_base", 1.0, 0.02),
    Tokenizer("gpt-4o*", "o200k_base", 1.0, 0.02),
    Tokenizer("gpt-4.*", "o200k_base", 1.0, 0.02),
    Tokenizer("gpt-4*", "cl100k_base", 1.0, 0.02),
    Tokenizer("text-embedding*", "cl100k_base", 1.0, 0.0),
    Tokenizer("gpt-*", "o200k_base", 1.0, 0.02),
    Tokenizer("o[134]*", "o200k_base", 1.0, 0.02),
    # Measured on 227 texts (agent sessions, prose, tables) against the model's own tokenizer: 1.03 to 1.55, middle 1.18.
    Tokenizer("smollm2*", "o200k_base", 1.18, 0.32),
    # Not measured: no public tokenizer. Newer Claude models count about 30 % more than older ones (provider-caching.md 6.5).
    Tokenizer("claude-3*", "o200k_base", 1.15, 0.3),
    Tokenizer("claude*", "o200k_base", 1.35, 0.4),
    # Not measured: vocabularies of 100,000 to 260,000 entries, near o200k's.
    Tokenizer("gemini*", "o200k_base", 1.05, 0.25),
    Tokenizer("deepseek*", "o200k_base", 1.05, 0.25),
    Tokenizer("kimi*", "o200k_base", 1.05, 0.25),
    Tokenizer("qwen*", "o200k_base", 1.05, 0.25),
    Tokenizer("grok*", "o200k_base", 1.05, 0.25),
    Tokenizer("mistral*", "o200k_base", 1.15, 0.3),
    Tokenizer("*", "o200k_base", 1.15, 0.5),
)
"""The first that fits a model's name (without path) counts."""


class Count(NamedTuple):
    """`tokens`, and the part of it by which the truth may differ, up or down."""

    tokens: int
    margin: float


def count(text: str, model: str) -> Count:
    """Tokens of a text for a model. The first call loads tiktoken (up to 0.4 s): use a thread."""
    tokenizer = tokenizer_of(model)
    encodings = import_module("gateway.metering.encodings")     # not at the top: see that module
    exact: int = encodings.count(text, tokenizer.encoding)
    return Count(-int(-exact * tokenizer.factor // 1), tokenizer.margin)


@cache
def _tokenizer(family: str) -> Tokenizer:
    return next(each for each in TOKENIZERS if fnmatchcase(family, each.pattern))


def tokenizer_of(model: str) -> Tokenizer:
    """Which encoding stands in for a model's, and how wrong it may be."""
    return _tokenizer(model.lower().rpartition("/")[2][:24])


def input_bound(body_bytes: int, *, has_tools: bool = False, links: int = 0) -> int:
    """Most prompt tokens that a request body of that many bytes can mean. `links`: images or files given by address."""
    return body_bytes + TEMPLATE_TOKENS + (TOOLS_TOKENS if has_tools else 0) + links * LINK_TOKENS


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A lane that a call may be sent down, as the price book knows it. `tier` is the one asked for."""

    provider: str
    model: str
    tier: str | None = None
    region: str | None = None


class Reach(msgspec.Struct, frozen=True):
    """What a call may come to on a lane: `input_tokens` at most, and `choices` answers (the request's `n`)."""

    lane: Candidate
    input_tokens: int
    choices: int = 1


def ceiling_nanos(book: PriceBook, reach: Reach, max_output: int, at_us: int) -> int | None:
    """The most that the call can cost there with so many output tokens an answer; None: the lane has no known price."""
    lane, bound = reach.lane, reach.input_tokens
    rates = book.dearest(lane.provider, lane.model, lane.tier, at_us, input_bound=bound, region=lane.region)
    return None if rates is None else nanos_from_picos(bound * rates[0] + max_output * rates[1] * reach.choices)


def affordable_output(book: PriceBook, reach: Reach, room_nanos: int, at_us: int) -> int | None:
    """Most output tokens an answer that `room_nanos` pay for after the prompt; None: no price."""
    lane, bound = reach.lane, reach.input_tokens
    rates = book.dearest(lane.provider, lane.model, lane.tier, at_us, input_bound=bound, region=lane.region)
    if rates is None:
        return None
    most, left = max_output_of(book, lane), room_nanos * 1000 - bound * rates[0]
    return most if not rates[1] else max(0, min(most, left // (rates[1] * reach.choices)))


def max_output_of(book: PriceBook, lane: Candidate) -> int:
    """Most output tokens of a lane's model, `DEFAULT_MAX_OUTPUT` where nothing is known."""
    known = book.max_output(lane.provider, lane.model)
    return DEFAULT_MAX_OUTPUT if known is None else known
