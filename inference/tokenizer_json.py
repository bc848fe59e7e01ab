"""A checkpoint's `tokenizer.json` as the metadata of a GGUF file; what we would not cut just like `tokenizers` is an error."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from inference.files import BadValue, read_json, shaped
from inference.tokenizer import PATTERNS


class _Added(msgspec.Struct):
    content: str
    id: int
    special: bool = False


class _BytePairs(msgspec.Struct):
    type: Literal["BPE"]
    vocab: dict[str, int]
    merges: list[str | tuple[str, str]] = []


class _Pattern(msgspec.Struct):
    regex: str | None = msgspec.field(name="Regex", default=None)


class _Step(msgspec.Struct):
    type: str | None = None
    pattern: _Pattern | None = None
    individual_digits: bool = False
    pretokenizers: list["_Step"] = []


class _Normalizer(msgspec.Struct):
    type: str


class _Words(msgspec.Struct):
    """What we use of `tokenizer.json`."""

    model: _BytePairs
    added_tokens: list[_Added] = []
    pre_tokenizer: _Step | None = None
    normalizer: _Normalizer | None = None


class _Content(msgspec.Struct):
    content: str


class _Told(msgspec.Struct):
    """What we use of `tokenizer_config.json`."""

    eos_token: str | _Content
    chat_template: str | None = None


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """A byte-level BPE tokenizer as the metadata of a GGUF file, which `Tokenizer` is built from."""
    raw = shaped(read_json(folder / "tokenizer.json"), _Words, "tokenizer.json (only byte-level BPE is supported)")
    told = shaped(read_json(folder / "tokenizer_config.json"), _Told, "tokenizer_config.json")
    added = {entry.content: entry.id for entry in raw.added_tokens if entry.special}
    if plain := sorted(entry.content for entry in raw.added_tokens if not entry.special):
        raise BadValue(f"tokenizer.json: added tokens that are not special are not supported: {plain[:5]}")
    ids = {index: token for token, index in (raw.model.vocab | added).items()}
    if sorted(ids) != list(range(len(ids))):
        raise BadValue("tokenizer.json: ids have gaps")
    _check_merges(raw.model)
    eos = told.eos_token if isinstance(told.eos_token, str) else told.eos_token.content
    if eos not in added:
        raise BadValue(f"tokenizer_config.json: eos_token {eos!r} is not among the special tokens")
    template = folder / "chat_template.jinja"
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre_tokenizer(raw),
        "tokenizer.ggml.tokens": [ids[index] for index in range(len(ids))],
        "tokenizer.ggml.token_type": [3 if ids[index] in added else 1 for index in range(len(ids))],
        "tokenizer.ggml.eos_token_id": added[eos],
        "tokenizer.chat_template": template.read_text(errors="replace") if template.exists() else told.chat_template,
    }


def _check_merges(model: _BytePairs) -> None:
    """tiktoken merges by id, `tokenizers` by the list of merges: the same only where ids rise along the list."""
    last = -1
    for merge in model.merges:
        left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
        index = model.vocab.get(left + right, -1)
        if index <= last:
            raise BadValue(f"tokenizer.json: the merge {left!r} + {right!r} is out of the order of ids")
        last = index


def _pre_tokenizer(raw: _Words) -> str:
    """The name of a known way to cut text; the two parts that matter are a regex and single digits."""
    if raw.normalizer is not None:
        raise BadValue(f"tokenizer.json: the normalizer {raw.normalizer.type!r} is not supported")
    found = raw.pre_tokenizer or _Step()
    steps = found.pretokenizers or [found]
    for step in steps:
        if step.type == "Split":
            pattern = step.pattern.regex if step.pattern is not None else None
            for name, known in PATTERNS.items():
                if known == pattern:
                    return name
            raise BadValue(f"tokenizer.json: the pre-tokenizer's pattern {pattern!r} is unknown")
    return "smollm" if any(step.type == "Digits" and step.individual_digits for step in steps) else "gpt-2"
