"""Text completions: what is accepted, and that stream and body tell the same."""

from __future__ import annotations

from typing import Any

import pytest

from inference.ask import Delta, Usage
from inference.completions import CompletionTeller, read_completion
from inference.parameters import ApiError
from inference.sampling import Logprob
from tests.inference.tiny import tokenizer

USAGE = Usage(prompt=40, cached=32, output=3)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [("Hi", [75, 108]), (["Hi"], [75, 108]), ([75, 108], [75, 108]), ([[75, 108]], [75, 108]), ([0], [0])],
    ids=str,
)
def test_a_prompt_is_text_or_ids(prompt: Any, ids: list[int]) -> None:
    """Ids may name control tokens, text never does."""
    assert read_completion({"prompt": prompt}, tokenizer(), 512).ask.prompt == ids
    assert 0 not in read_completion({"prompt": "<|endoftext|>"}, tokenizer(), 512).ask.prompt


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "prompt", None),
        ({"prompt": ""}, "prompt", None),
        ({"prompt": []}, "prompt", None),
        ({"prompt": ["a", "b"]}, "prompt", None),
        ({"prompt": [1 << 40]}, "prompt", None),
        ({"prompt": [True]}, "prompt", None),
        ({"prompt": "x" * 512}, "prompt", "context_length_exceeded"),
        ({"prompt": "x", "echo": True}, "echo", None),
        ({"prompt": "x", "suffix": "y"}, "suffix", None),
        ({"prompt": "x", "best_of": 3}, "best_of", None),
        ({"prompt": "x", "logprobs": 21}, "logprobs", None),
        ({"prompt": "x", "n": 2}, "n", None),
    ],
    ids=str,
)
def test_a_bad_parameter_is_named(body: dict[str, Any], param: str, code: str | None) -> None:
    """The error is a 400 that says which parameter it is about."""
    with pytest.raises(ApiError) as error:
        read_completion(body, tokenizer(), 512)
    told = error.value.body()["error"]
    assert (error.value.status, told["param"], told["code"]) == (400, param, code)


def test_stream_and_body_agree() -> None:
    """Text, log probabilities with their offsets, finish reason and usage are one and the same."""
    body = {"prompt": "x", "logprobs": 1, "stream_options": {"include_usage": True}, "service_tier": "fast"}
    streamed, whole = (CompletionTeller(read_completion(body, tokenizer(), 512), "m", "fp", tokenizer()) for _ in "12")
    deltas = [
        Delta(text, (68 + at,), (Logprob(68 + at, -0.5, ((70, -0.25),)),), USAGE, "length" if at == 2 else None)
        for at, text in enumerate(("A", "", "BC"))
    ]
    assert streamed.opening() == ()
    chunks = [chunk for delta in deltas for chunk in streamed.chunks(delta)]
    for delta in deltas:
        whole.add(delta)
    answer = whole.body(deltas[-1])
    told = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(choice["text"] for choice in told) == answer["choices"][0]["text"] == "ABC"
    for name, values in answer["choices"][0]["logprobs"].items():
        assert [value for choice in told for value in choice["logprobs"][name]] == values
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2]
    assert answer["choices"][0]["logprobs"]["top_logprobs"][0] == {"C": -0.25}
    assert told[-1]["finish_reason"] == answer["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == answer["usage"]
    assert {chunk["object"] for chunk in (*chunks, answer)} == {"text_completion"}
