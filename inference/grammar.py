"""Answers that must have a form: a JSON schema as a mask over the vocabulary, token by token, by llguidance.

A grammar is checked when the request is read; what it allows next is worked out just before each draw, on the engine's
thread (50 us a token and more). Drafts need nothing special: a draft that the form forbids is never what is drawn.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from llguidance.tiktoken import lltokenizer_from_encoding
from torch import Tensor

from inference.tokenizer import Tokenizer

_MOST_SCHEMA = 200_000


class BadGrammar(ValueError):
    """The schema cannot be followed; the text says why."""


class Grammar:
    """One answer's form and how far the answer has come in it."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self._matcher = LLMatcher(_vocabulary(tokenizer), text, log_level=0)
        if self._matcher.is_error():
            raise BadGrammar(self._matcher.get_error().splitlines()[0][:300])
        self._mask: npt.NDArray[np.int32] = allocate_token_bitmask(1, tokenizer.size)

    @property
    def complete(self) -> bool:
        """Nothing more can come."""
        return bool(self._matcher.is_stopped())

    def forbid(self, row: Tensor) -> Tensor:
        """Logits [vocabulary] with minus infinity for every token that cannot come next."""
        fill_next_token_bitmask(self._matcher, self._mask)
        allowed = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: row.shape[0]]
        return row.masked_fill(torch.from_numpy(allowed) == 0, float("-inf"))

    def accept(self, token: int) -> None:
        """A token was drawn; it must be one that was allowed."""
        if not self.complete:
            self._matcher.consume_token(token)


def json_schema(schema: Mapping[str, Any], tokenizer: Tokenizer) -> Grammar:
    """The answer is one JSON value that fits the schema; raises `BadGrammar` for one that cannot be followed."""
    text = json.dumps(schema)
    if len(text) > _MOST_SCHEMA:
        raise BadGrammar(f"the schema is longer than {_MOST_SCHEMA} characters")
    try:
        return Grammar(LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_flexible": False}), tokenizer)
    except ValueError as error:
        raise BadGrammar(str(error).splitlines()[0][:300]) from error


def any_json(tokenizer: Tokenizer) -> Grammar:
    """The answer is one JSON object."""
    return json_schema({"type": "object"}, tokenizer)


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """Takes about a second; kept for as long as the tokenizer lives."""
    return lltokenizer_from_encoding(tokenizer.encoding, n_vocab=tokenizer.size, eos_token=tokenizer.eos)
