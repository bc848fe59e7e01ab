"""Words to token ids and back: a tiktoken encoding built from GGUF metadata, chats as ids, and streamed text.

What a user typed never becomes a control token: only the chat format's own parts add special ids. A chat is encoded
part by part (header, content, end), so the ids of a longer conversation start with the ids of a shorter one and the
prefix cache hits; only content that begins with white space could be split differently in one go.
"""

import codecs
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import tiktoken

from inference.files import BadValue, shaped

_NORMAL, _CONTROL, _USER = 1, 3, 4
# tokenizer.ggml.pre -> the pattern that cuts text before byte pairs are merged
PATTERNS = {
    "smollm": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """A known chat template, written as data; a template string from a file is never run."""

    start: str
    end: str
    system: str | None


CHATML = ChatFormat("<|im_start|>", "<|im_end|>", None)
# sha256 of the template text in the file -> what it means
_FORMATS = {
    "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788": ChatFormat(
        "<|im_start|>", "<|im_end|>", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    ),
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as the model sees it; `parts` are encoded one by one, so that their borders are fixed."""

    role: str
    parts: tuple[str, ...]


class Words(msgspec.Struct):
    """The metadata that a tokenizer is built from, named as in a GGUF file."""

    model: str = msgspec.field(name="tokenizer.ggml.model")
    tokens: list[str] = msgspec.field(name="tokenizer.ggml.tokens")
    kinds: list[int] = msgspec.field(name="tokenizer.ggml.token_type")
    eos: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(name="tokenizer.ggml.eos_token_id")
    pre: str = msgspec.field(name="tokenizer.ggml.pre", default="")
    template: str | None = msgspec.field(name="tokenizer.chat_template", default=None)


class Tokenizer:
    """Built from a file's metadata; `eos` ends an answer."""

    def __init__(self, meta: Mapping[str, Any], chat_format: ChatFormat | None = None) -> None:
        words = shaped(meta, Words, "the tokenizer")
        if words.model != "gpt2":
            raise BadValue(f"tokenizer {words.model!r} is not byte-level BPE (gpt2)")
        if (pattern := PATTERNS.get(words.pre)) is None:
            raise BadValue(f"pre-tokenizer {words.pre!r} is unknown")
        ranks, special = _vocabulary(words.tokens, words.kinds)
        self.encoding = tiktoken.Encoding("gguf", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        self._unwritable = _unwritable(ranks)
        self._bytes = [b""] * len(words.tokens)
        for piece, index in ranks.items():
            self._bytes[index] = piece
        self.size = len(words.tokens)
        self.special = special
        if (eos := words.eos) >= self.size:
            raise BadValue(f"the token that ends an answer, {eos}, is none of {self.size}")
        self.eos = eos
        self.format = chat_format or _chat_format(words.template)
        if self.format.start not in special or self.format.end not in special:
            raise BadValue("the chat format's control tokens are not in the vocabulary")
        self._start, self._end = special[self.format.start], special[self.format.end]

    def encode(self, text: str) -> list[int]:
        """Plain text: nothing in it becomes a control token; characters the vocabulary cannot write become U+FFFD."""
        return self.encoding.encode_ordinary(self._unwritable.sub("\ufffd", text))

    def encode_chat(self, turns: Sequence[Turn], opening: Sequence[str] = ()) -> list[int]:
        """A conversation, then the header of the answer, then what the answer is made to begin with."""
        ids: list[int] = []
        if self.format.system is not None and (not turns or turns[0].role != "system"):
            turns = (Turn("system", (self.format.system,)), *turns)
        for turn in turns:
            ids += [self._start, *self.encode(turn.role + "\n")]
            for part in turn.parts:
                ids += self.encode(part)
            ids += [self._end, *self.encode("\n")]
        ids += [self._start, *self.encode("assistant\n")]
        for part in opening:
            ids += self.encode(part)
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes of one token; control tokens have none."""
        return self._bytes[token] if 0 <= token < self.size else b""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.piece(token) for token in ids).decode(errors="replace")


class StreamDecoder:
    """Ids in, text out, at once, except what may still change: half a character, or the start of a stop string.

    A stop string ends the text where it completes first; what follows never leaves, not even from the same token.
    `cut` may end the text too: it sees all text so far and answers where to end it, or None.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), cut: Callable[[str], int | None] | None = None) -> None:
        self._tokenizer, self._stops, self._cut = tokenizer, tuple(stops), cut
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._sent = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Add one token; the text that is now certain."""
        return self._release(self._utf8.decode(self._tokenizer.piece(token)))

    def finish(self) -> str:
        """The end: what was held back and is not a stop string after all."""
        text = self._release(self._utf8.decode(b"", final=True))
        rest, self._held = self._held, ""
        return text + ("" if self.stopped else rest)

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        self._held += text
        end = _first_stop(self._held, self._stops)
        if self._cut is not None:
            at = self._cut(self._sent + self._held)
            if at is not None and (end is None or at - len(self._sent) <= end):
                end = at - len(self._sent)
        if end is not None:
            self.stopped = True
            out, self._held = self._held[:end], ""
        else:
            keep = _maybe_stop(self._held, self._stops)
            out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        if self._cut is not None:
            self._sent += out
        return out


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string that completes first begins (of two that end together the longer counts)."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def _maybe_stop(text: str, stops: Sequence[str]) -> int:
    """How many last characters could be the start of a stop string."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops if len(stop) > size):
            return size
    return 0


def _vocabulary(tokens: Sequence[str], kinds: Sequence[int]) -> tuple[dict[bytes, int], dict[str, int]]:
    """Ordinary tokens as bytes, control tokens as text; each with its id."""
    if len(tokens) != len(kinds):
        raise BadValue(f"{len(tokens)} tokens but {len(kinds)} token types")
    to_byte = _unicode_to_byte()
    ranks: dict[bytes, int] = {}
    special: dict[str, int] = {}
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind in (_CONTROL, _USER):
            special[token] = index
            continue
        try:
            piece = bytes(to_byte[character] for character in token)
        except KeyError as error:
            raise BadValue(f"token {index} holds {error.args[0]!r}, which is no byte of GPT-2's map") from error
        if kind != _NORMAL or piece in ranks:
            raise BadValue(f"token {index} has type {kind} or comes twice")
        ranks[piece] = index
    return ranks, special


def _unwritable(ranks: Mapping[bytes, int]) -> re.Pattern[str]:
    """Characters with a byte that is no token: SmolLM2 lacks some control characters and the lead bytes F1 and F2."""
    lacking = {value for value in range(256) if bytes([value]) not in ranks}
    if lacking & (set(range(0x20, 0x7F)) | set(range(0x80, 0xC0)) | set(range(0xC2, 0xF0))):
        raise BadValue(f"the vocabulary lacks everyday bytes: {sorted(lacking)}")
    bad = [re.escape(chr(value)) for value in lacking if value < 0x20 or value == 0x7F]
    # a lead byte F0 to F4 covers 2**18 code points; F0 starts at U+10000
    for lead in (value for value in range(0xF0, 0xF5) if value in lacking):
        low = max((lead - 0xF0) << 18, 0x10000)
        high = min(((lead - 0xF0 + 1) << 18) - 1, 0x10FFFF)
        bad.append(f"{chr(low)}-{chr(high)}")
    return re.compile(f"[{''.join(bad)}\ud800-\udfff]")


def _unicode_to_byte() -> dict[str, int]:
    """GPT-2 writes bytes as printable characters: itself where printable, else 256 and up in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(value): value for value in printable}
    others = [value for value in range(256) if value not in set(printable)]
    return table | {chr(256 + index): value for index, value in enumerate(others)}


def _chat_format(template: str | None) -> ChatFormat:
    digest = hashlib.sha256(str(template).encode()).hexdigest()
    if digest not in _FORMATS:
        raise BadValue(
            f"no chat format is known for the template with sha256 {digest}; if it is ChatML, say --chat-format chatml"
        )
    return _FORMATS[digest]
