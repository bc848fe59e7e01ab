"""tiktoken's encodings from rank files in our package: no download, no environment variable.

Only `estimate.py` loads this module, in a thread at its first use: importing tiktoken and reading ranks costs 0.1 to 0.4
seconds and up to 78 MiB, which the gateway's start does not pay.
"""
from __future__ import annotations

import base64
import gzip
import hashlib
from importlib.resources import files

import tiktoken
from tiktoken import registry
from tiktoken_ext import openai_public

_CUT = 100_000
"""Characters at once; past about a million of white space o200k_base panics."""


def count(text: str, name: str) -> int:
    """Tokens of a text. Special tokens count as what they look like: users write `<|endoftext|>` too."""
    ranks = encoding(name)
    return sum(len(ranks.encode_ordinary(text[at:at + _CUT])) for at in range(0, len(text), _CUT))


def encoding(name: str) -> tiktoken.Encoding:
    """tiktoken's encoding of that name, `o200k_base` or `cl100k_base`."""
    with registry._lock:
        if name not in registry.ENCODINGS:
            download = openai_public.load_tiktoken_bpe
            openai_public.load_tiktoken_bpe = lambda _url, expected_hash=None: _ranks(name, expected_hash)
            try:
                registry.ENCODINGS[name] = tiktoken.Encoding(**getattr(openai_public, name)())
            finally:
                openai_public.load_tiktoken_bpe = download
        return registry.ENCODINGS[name]


def _ranks(name: str, expected_sha256: str) -> dict[bytes, int]:
    raw = gzip.decompress(files("gateway").joinpath("data", f"{name}.tiktoken.gz").read_bytes())
    if hashlib.sha256(raw).hexdigest() != expected_sha256:
        raise RuntimeError(f"the rank file of {name} is not tiktoken's")
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in raw.splitlines())}
