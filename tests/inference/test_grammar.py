"""Answers of a stated form: whatever the model would rather say, the text fits the schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import torch

from inference.grammar import BadGrammar, any_json, json_schema
from inference.sampling import Sampler, Sampling
from tests.inference.tiny import tokenizer

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}  # fmt: skip
COLOURS = {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 3}


def _generate(schema: dict[str, Any], seed: int, drafts: int) -> str:
    """What random logits give under the schema; every step is offered drafts of which few can be right."""
    words, grammar, generator = tokenizer(), json_schema(schema, tokenizer()), torch.Generator().manual_seed(seed)
    sampler, tokens = Sampler(Sampling(temperature=1.0, seed=seed), grammar=grammar), []
    while not grammar.complete and len(tokens) < 400:
        logits = torch.randn(1 + drafts, words.size, generator=generator) * 3
        best = logits.argmax(-1).tolist()
        guesses = torch.randint(3, words.size, (drafts,), generator=generator).tolist()
        tokens += sampler.verify(logits, best, len(tokens), guesses).tokens
    return words.decode(tokens)


@pytest.mark.parametrize("schema", [PERSON, COLOURS], ids=["object", "array"])
@pytest.mark.parametrize("drafts", [0, 3])
def test_random_logits_give_what_the_schema_allows(schema: dict[str, Any], drafts: int) -> None:
    """For any seed, with and without drafts."""
    for seed in range(5):
        jsonschema.validate(json.loads(_generate(schema, seed, drafts)), schema)


def test_any_json_is_an_object() -> None:
    """`json_object` allows an opening brace and nothing else to begin with."""
    allowed = any_json(tokenizer()).forbid(torch.zeros(tokenizer().size)) == 0
    assert tokenizer().decode(allowed.nonzero().flatten().tolist()) == "{"


@pytest.mark.parametrize("schema", [{"type": "strange"}, {"$ref": "#/nowhere"}, {"enum": ["x" * 300_000]}], ids=["type", "ref", "size"])
def test_a_schema_that_cannot_be_followed_says_why(schema: dict[str, Any]) -> None:
    """The error is one line and comes when the request is read."""
    with pytest.raises(BadGrammar) as error:
        json_schema(schema, tokenizer())
    assert 0 < len(str(error.value)) <= 300
