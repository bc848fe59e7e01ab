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
from gateway.core.part import BYTES_PER_TOKEN, NOTHING, USUAL_FILE_TOKENS, USUAL_IMAGE_TOKENS, Attached
from gateway.metering.prices import Offer, PriceBook

TEMPLATE_TOKENS = 64
"""What a chat template may add beyond the bytes of the JSON around the text."""
TOOLS_TOKENS = 1_024
"""What a provider's hidden tool instructions may add (Anthropic's are 300 to 800)."""
LINK_TOKENS = 200_000
"""What a file or a sound may come to that a request only names, and all earlier items together: a usual model's window."""
WINDOW_TOKENS = 1_000_000
"""A prompt that has more than this beside its text is taken by hardly any model."""
_IMAGE_TOKENS = (
    ("anthropic", "*", 5_000), ("bedrock", "*claude*", 5_000), ("openai", "gpt-4o-mini*", 50_000), ("*", "*", 20_000),
)  # fmt: skip
"""(provider, model, the most that one image may come to). Anthropic: 4,784 at the highest resolution; gpt-4o-mini: 2,833 and
5,667 for each of up to eight tiles; OpenAI else up to 10,000 patches, times up to 1.7; Qwen up to 16,384."""
_USUAL_ITEM_TOKENS = 300
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


def input_bound(offer: Offer, body_bytes: int, held: Attached = NOTHING, *, has_tools: bool = False) -> int:
    """Most prompt tokens that a request body of that many bytes can mean there: a byte of text is a token at most."""
    text = body_bytes + TEMPLATE_TOKENS + (TOOLS_TOKENS if has_tools else 0)
    if held is NOTHING:
        return text
    images = held.images * _image_tokens(offer.provider, offer.model)
    links = (held.linked + bool(held.recalled)) * LINK_TOKENS + min(held.file_bytes, held.files * LINK_TOKENS)
    return max(text - held.embedded_bytes, 0) + min(images + links + held.earlier_tokens, WINDOW_TOKENS)


def usual_input(body_bytes: int, held: Attached = NOTHING) -> int:
    """About how many prompt tokens a request body means, at least 1."""
    if held is NOTHING:
        return max(body_bytes // BYTES_PER_TOKEN, 1)
    return max(max(body_bytes - held.embedded_bytes, 0) // BYTES_PER_TOKEN + usual_beside(held), 1)


def usual_beside(held: Attached) -> int:
    """About how many tokens a prompt has beside its text."""
    named = held.linked * USUAL_FILE_TOKENS + held.recalled * _USUAL_ITEM_TOKENS
    return held.images * USUAL_IMAGE_TOKENS + held.file_tokens + named + held.earlier_tokens


@cache
def _image_tokens(provider: str, model: str) -> int:
    return next(most for who, which, most in _IMAGE_TOKENS if fnmatchcase(provider, who) and fnmatchcase(model.lower(), which))


class Reach(msgspec.Struct, frozen=True):
    """What a call may come to where it is sent: `input_tokens` at most, and `choices` answers (the request's `n`).

    `media`: it holds images or sound, which may have rates of their own.
    """

    offer: Offer
    input_tokens: int
    choices: int = 1
    media: bool = False


def ceiling_nanos(book: PriceBook, reach: Reach, max_output: int, at_us: int) -> int | None:
    """The most that the call can cost there with so many output tokens an answer; None: no price is known."""
    rates = _dearest(book, reach, at_us)
    if rates is None:
        return None
    return nanos_from_picos(reach.input_tokens * rates[0] + max_output * rates[1] * reach.choices)


def affordable_output(book: PriceBook, reach: Reach, room_nanos: int, at_us: int) -> int | None:
    """Most output tokens an answer that `room_nanos` pay for after the prompt; None: no price."""
    rates = _dearest(book, reach, at_us)
    if rates is None:
        return None
    most, left = max_output_of(book, reach.offer), room_nanos * 1000 - reach.input_tokens * rates[0]
    return most if not rates[1] else max(0, min(most, left // (rates[1] * reach.choices)))


def _dearest(book: PriceBook, reach: Reach, at_us: int) -> tuple[int, int] | None:
    return book.dearest(reach.offer, at_us, input_bound=reach.input_tokens, media=reach.media)


def max_output_of(book: PriceBook, offer: Offer) -> int:
    """Most output tokens of the model, `DEFAULT_MAX_OUTPUT` where nothing is known."""
    known = book.max_output(offer.provider, offer.model)
    return DEFAULT_MAX_OUTPUT if known is None else known
