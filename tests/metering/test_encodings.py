"""Tokens are counted as tiktoken counts them, with no network."""
from __future__ import annotations

import subprocess
import sys

import pytest

from gateway.metering import encodings


@pytest.mark.parametrize(("name", "text", "ids"), [
    ("cl100k_base", "tiktoken is great!", [83, 1609, 5963, 374, 2294, 0]),
    ("cl100k_base", "2 + 2 = 4", [17, 489, 220, 17, 284, 220, 19]),
    ("o200k_base", "tiktoken is great!", [83, 8251, 2488, 382, 2212, 0]),
    ("o200k_base", "2 + 2 = 4", [17, 659, 220, 17, 314, 220, 19]),
    ("o200k_base", "antidisestablishmentarianism", [493, 129901, 376, 160388, 21203, 2367]),
])
def test_ids_are_tiktokens(name: str, text: str, ids: list[int]) -> None:
    """Known ids, from rank files in our package."""
    assert encodings.encoding(name).encode_ordinary(text) == ids
    assert encodings.count(text, name) == len(ids)


def test_what_users_write_never_becomes_a_special_token() -> None:
    """`<|endoftext|>` in a text is text."""
    assert encodings.count("<|endoftext|>", "o200k_base") > 1


def test_long_texts_are_cut_before_they_hurt() -> None:
    """A million spaces break the encoder in one piece."""
    assert encodings.count(" " * 1_000_000, "o200k_base") > 0


def test_no_network_is_asked() -> None:
    """It works where sockets do not."""
    code = ("import socket; socket.socket = None; socket.getaddrinfo = None; "
            "from gateway.metering.encodings import count; print(count('hello world', 'cl100k_base'))")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "2"


def test_a_changed_rank_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """tiktoken's own SHA-256 decides."""
    with pytest.raises(RuntimeError, match="not tiktoken's"):
        encodings._ranks("cl100k_base", "0" * 64)
