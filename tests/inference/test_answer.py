"""Answers: stream and body tell the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inference.answer import ChatTeller, Teller, frame
from inference.ask import Delta, Usage
from inference.chat import read_chat
from inference.completions import CompletionTeller, read_completion
from inference.sampling import Logprob
from tests.inference.tiny import tokenizer

TOOL = {"type": "function", "function": {"name": "f"}}
USAGE = Usage(prompt=40, cached=32, output=5)


def _teller(**body: Any) -> ChatTeller:
    request = read_chat({"messages": [{"role": "user", "content": "Hi"}]} | body, tokenizer(), 512)
    return ChatTeller(request, "m", "fp", tokenizer())


def _completion(**body: Any) -> CompletionTeller:
    return CompletionTeller(read_completion({"prompt": "Hi"} | body, tokenizer(), 512), "m", "fp", tokenizer())


def _deltas(*texts: str, reason: str = "stop") -> list[Delta]:
    last = len(texts) - 1
    return [
        Delta(text, (5,), (Logprob(5, -0.5),), USAGE, reason if at == last else None) for at, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("body", "texts", "reason", "content", "calls", "finish"),
    [
        pytest.param({}, ("Hel", "", "lo"), "stop", "Hello", [], "stop", id="text"),
        pytest.param({}, ("Hel",), "length", "Hel", [], "length", id="cut by length"),
        pytest.param({"tools": [TOOL]}, ("a<tool", '_call>{"name": "f", "argu', 'ments": {}}</tool_call>'), "stop", "a", ["{}"], "tool_calls", id="a call"),
        pytest.param({"tools": [TOOL], "tool_choice": "none"}, ('<tool_call>{"name": "f"}</tool_call>',), "stop", '<tool_call>{"name": "f"}</tool_call>', [], "stop", id="no calls wanted"),
        pytest.param({"tools": [TOOL], "tool_choice": "required"}, ('{"x"', ": 1}"), "stop", "", ['{"x": 1}'], "tool_calls", id="forced"),
        pytest.param({"tools": [TOOL], "tool_choice": "required"}, ('{"x"',), "length", "", ["{}"], "length", id="forced and cut"),
    ],
)  # fmt: skip
def test_stream_and_body_agree(
    body: dict[str, Any], texts: tuple[str, ...], reason: str, content: str, calls: list[str], finish: str
) -> None:
    """Content, calls, finish reason, tier and usage are one and the same, told at once or in chunks."""
    options = {"service_tier": "fast", "stream_options": {"include_usage": True}}
    streamed, whole = _teller(**body, **options), _teller(**body, **options)
    deltas = _deltas(*texts, reason=reason)
    chunks = streamed.opening() + [chunk for delta in deltas for chunk in streamed.chunks(delta)]
    for delta in deltas:
        whole.add(delta)
    answer = whole.body(deltas[-1])
    message = answer["choices"][0]["message"]
    told = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert told[0]["delta"]["role"] == "assistant"
    assert "".join(choice["delta"].get("content") or "" for choice in told) == content == (message["content"] or "")
    streamed_calls = [call for choice in told for call in choice["delta"].get("tool_calls", ())]
    assert [call["function"]["arguments"] for call in streamed_calls] == calls
    assert [call["function"]["arguments"] for call in message.get("tool_calls", ())] == calls
    assert [choice["finish_reason"] for choice in told if choice["finish_reason"]] == [finish]
    assert answer["choices"][0]["finish_reason"] == finish
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == answer["usage"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
    assert {chunk["service_tier"] for chunk in chunks} == {answer["service_tier"]} == {"priority"}


@pytest.mark.parametrize("teller", [_teller, _completion], ids=["chat", "completion"])
@pytest.mark.parametrize("text", ["", "Hel", '"\\\n\0', "\ufffd\u2028é😀"], ids=ascii)
def test_frames_are_the_chunks(teller: Callable[..., Teller], text: str) -> None:
    """What is put together around a text is byte for byte what its chunks make."""
    for options in ({}, {"stream_options": {"include_usage": True}}):
        told = teller(**options)
        for reason in (None, "stop"):
            delta = Delta(text, (5,), (), USAGE, reason)
            assert told.frames(delta) == b"".join(map(frame, told.chunks(delta)))


def test_logprobs_are_told_once_each() -> None:
    """Every token's entry comes exactly once, also where its text was held back or is a call."""
    for body in ({}, {"tools": [TOOL], "tool_choice": "required"}):
        teller = _teller(logprobs=True, **body)
        chunks = [chunk for delta in _deltas("{", "", "}") for chunk in teller.chunks(delta)]
        told = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", ())]
        assert len(told) == 3
        assert told[0] == {"token": "\x02", "logprob": -0.5, "bytes": [2], "top_logprobs": []}


def test_usage_is_only_streamed_if_asked() -> None:
    """Without stream_options there is no usage chunk and no usage field."""
    assert all("usage" not in chunk for delta in _deltas("x") for chunk in _teller().chunks(delta))
