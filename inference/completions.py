"""OpenAI text completions: a prompt as text or token ids, told as chunks or as one body."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from inference.answer import usage_json
from inference.ask import Ask, Delta
from inference.parameters import Json, bad, flag, integer, mapping, read_ask
from inference.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What to generate and how the client wants it told."""

    ask: Ask
    stream: bool
    include_usage: bool


def read_completion(body: Json, tokenizer: Tokenizer, context: int) -> CompletionRequest:
    """Check a body and encode its prompt."""
    for name in ("echo", "suffix"):
        if body.get(name):
            raise bad(f"{name} is not supported", name)
    if integer(body, "best_of", 1, 1, 128) != 1:
        raise bad("only best_of = 1 is supported", "best_of")
    ask = read_ask(
        body,
        _prompt(body.get("prompt"), tokenizer),
        where="prompt",
        context=context,
        vocabulary=tokenizer.size,
        logprobs=None if body.get("logprobs") is None else integer(body, "logprobs", 0, 0, 20),
    )
    return CompletionRequest(ask, flag(body, "stream"), flag(mapping(body, "stream_options"), "include_usage"))


def _prompt(prompt: object, tokenizer: Tokenizer) -> list[int]:
    """A text, a list of ids, or a list with one of these."""
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        prompt = tokenizer.encode(prompt)
    if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
        raise bad("prompt must be one text or one list of token ids", "prompt")
    if not prompt:
        raise bad("prompt must not be empty", "prompt")
    if not all(0 <= token < tokenizer.size for token in prompt):
        raise bad(f"prompt: token ids go from 0 to {tokenizer.size - 1}", "prompt")
    return prompt


@dataclass(slots=True)
class CompletionTeller:
    """One answer: its id and head, and what has been told of it so far."""

    request: CompletionRequest
    model: str
    fingerprint: str
    tokenizer: Tokenizer
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _text: str = ""
    _deltas: list[Delta] = field(default_factory=list)
    _offset: int = 0

    def opening(self) -> list[dict[str, Any]]:
        """Text completions begin with their first token."""
        return []

    def chunks(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """The chunks for one delta, with finish and usage at the end."""
        if delta.text or delta.logprobs or delta.reason is not None:
            yield self._head() | {"choices": [self._choice(delta.text, [delta], delta.reason)]}
        if delta.reason is not None and self.request.include_usage:
            yield self._head() | {"choices": [], "usage": usage_json(delta.usage)}

    def add(self, delta: Delta) -> None:
        """Take a delta in without telling it yet."""
        self._text += delta.text
        self._deltas.append(delta)

    def body(self, delta: Delta) -> dict[str, Any]:
        """The whole answer; call after all deltas went through `add`, with the last one."""
        choice = self._choice(self._text, self._deltas, delta.reason or "stop")
        return self._head() | {"choices": [choice], "usage": usage_json(delta.usage)}

    def _choice(self, text: str, deltas: list[Delta], reason: str | None) -> dict[str, Any]:
        told = None if self.request.ask.sampling.logprobs is None else self._logprobs(deltas)
        return {"index": 0, "text": text, "logprobs": told, "finish_reason": reason}

    def _logprobs(self, deltas: list[Delta]) -> dict[str, Any]:
        """Four lists with an entry per token; offsets count characters of the answer."""
        told: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for logprob in (logprob for delta in deltas for logprob in delta.logprobs):
            piece = self._piece(logprob.token)
            told["tokens"].append(piece)
            told["token_logprobs"].append(logprob.value)
            told["top_logprobs"].append({self._piece(token): value for token, value in logprob.top})
            told["text_offset"].append(self._offset)
            self._offset += len(piece)
        return told

    def _piece(self, token: int) -> str:
        return self.tokenizer.piece(token).decode(errors="replace")

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "service_tier": self.request.ask.lane.tier,
            "system_fingerprint": self.fingerprint,
        }
