"""OpenAI text completions: a prompt as text or token ids, told as chunks or as one body."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from inference.answer import Json, Teller, usage_json
from inference.ask import Delta
from inference.parameters import Requested, bad, check_length, integer, read_ask, telling
from inference.tokenizer import Tokenizer


def read_completion(body: Mapping[str, Any], tokenizer: Tokenizer, context: int) -> Requested:
    """Check a body and encode its prompt."""
    for name in ("echo", "suffix"):
        if body.get(name):
            raise bad(f"{name} is not supported", name)
    if integer(body, "best_of", 1, 1, 128) != 1:
        raise bad("only best_of = 1 is supported", "best_of")
    prompt = check_length(_prompt(body.get("prompt"), tokenizer), context, "prompt")
    logprobs = None if body.get("logprobs") is None else integer(body, "logprobs", 0, 0, 20)
    return Requested(read_ask(body, prompt, context, tokenizer.size, logprobs), *telling(body))


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
class CompletionTeller(Teller):
    """Text that goes on from the prompt."""

    _text: str = ""
    _deltas: list[Delta] = field(default_factory=list)
    _offset: int = 0
    kind: ClassVar[str] = "text_completion"
    prefix: ClassVar[str] = "cmpl"

    def text_chunk(self, text: str) -> Json:
        return self._told(text, [], None)

    def chunks(self, delta: Delta) -> Iterator[Json]:
        if delta.text or delta.logprobs or delta.reason is not None:
            yield self._told(delta.text, [delta], delta.reason)
        if delta.reason is not None and self.request.include_usage:
            yield self.head(self.kind) | {"choices": [], "usage": usage_json(delta.usage)}

    def add(self, delta: Delta) -> None:
        self._text += delta.text
        self._deltas.append(delta)

    def body(self, delta: Delta) -> Json:
        return self._told(self._text, self._deltas, delta.reason or "stop") | {"usage": usage_json(delta.usage)}

    def _told(self, text: str, deltas: list[Delta], reason: str | None) -> Json:
        told = None if self.request.ask.sampling.logprobs is None else self._logprobs(deltas)
        choice = {"index": 0, "text": text, "logprobs": told, "finish_reason": reason}
        return self.head(self.kind) | {"choices": [choice]}

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
