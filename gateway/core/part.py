"""The parts of a prompt: where each stands in the body, and what is known of its bytes wherever they stand."""
from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import msgspec

USUAL_IMAGE_TOKENS, USUAL_FILE_TOKENS, BYTES_PER_TOKEN = 1_500, 2_000, 4
_FILE_BYTES_PER_TOKEN = 200
"""Of large files, sounds and films: a scanned page has 100 to 500 kB and 1,500 to 3,000 tokens, a minute of sound 1 to 4 MB and
some 600."""
_NAME_BYTES, _SPARE_BITS = 8, 4


class Attached(NamedTuple):
    """What a prompt, or a part of one, holds beside its text."""

    images: int = 0
    image_bytes: int = 0
    """Of those that travel in it; none for one that is named by address or id."""
    sounds: int = 0
    linked: int = 0
    """Files, sounds and films that it only names."""
    recalled: int = 0
    """Earlier items and spoken answers that it names."""
    earlier_tokens: int = 0
    """Of what the provider has stored of the conversation."""
    files: int = 0
    file_bytes: int = 0
    """Of files, sounds and films that travel in it, other than plain text."""

    def weight(self, size: int) -> int:
        """Of so many bytes that hold it, as if they were all text."""
        beside = self.images * USUAL_IMAGE_TOKENS + self.file_tokens
        return max(size - self.embedded_bytes, 0) + beside * BYTES_PER_TOKEN

    @property
    def embedded_bytes(self) -> int:
        """Of all that travels in the prompt and is no text."""
        return self.image_bytes + self.file_bytes

    @property
    def file_tokens(self) -> int:
        """About how many the files have that travel in it."""
        few = min(self.file_bytes // BYTES_PER_TOKEN, self.files * USUAL_FILE_TOKENS)
        return max(few, self.file_bytes // _FILE_BYTES_PER_TOKEN)


NOTHING = Attached()


class Block(msgspec.Struct, eq=False, gc=False):
    """What the bytes of a part say, whoever sends them. What may be None is found when it is first asked for."""

    name: int
    """60 bits of SHA-256 of the bytes without the client's markers: as small as Python keeps a number, and wide enough for
    millions. 0: nobody has asked for it yet, see `named`."""
    size: int
    """Bytes."""
    weight: int
    """Bytes that it counts for: without the client's markers, an image or a file as its usual tokens would have."""
    marked: bool
    """Whether it has such markers."""
    role: str | None = None
    """As a message."""
    said: bytes | None = None
    """Names what a message says."""
    inner: tuple[int, int] | None = None
    """Of a list of tools, or a message with a list of blocks: how many, and where in it the last but one ends."""
    content_fetches: bool | None = None
    """Whether its content names an address to fetch."""
    fetches: bool | None = None
    """Whether anything in it does."""
    calls_out: bool | None = None
    """As tools, whether one names a server to call."""
    attached: Attached | None = None
    """See `dialects/attached.py`; None: not looked for."""
    unnamed: bytes = b""
    """What the name will be made of."""

    def named(self) -> int:
        """The name, made if it is asked for the first time."""
        if not self.name:
            self.name, self.unnamed = name_of(self.unnamed), b""
        return self.name


def name_of(bare: bytes) -> int:
    """Of the bytes of a part without the client's markers."""
    return int.from_bytes(sha256(bare).digest()[:_NAME_BYTES]) >> _SPARE_BITS


class Part(msgspec.Struct, frozen=True, gc=False):
    """`field` is its top-level field, `item` its place in that field's list, -1 for the whole value."""

    start: int
    end: int
    field: str
    item: int
    block: Block

    @property
    def span(self) -> tuple[int, int]:
        """Where it stands in the body."""
        return self.start, self.end

    @property
    def path(self) -> str:
        """As a JSON Pointer."""
        return f"/{self.field}" if self.item < 0 else f"/{self.field}/{self.item}"
