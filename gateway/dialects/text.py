"""All text of a prompt, whatever its shape: a walk over decoded JSON that knows the few strings that are no text."""
from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway.core.prompt import Json

_NO_TEXT = frozenset({
    "type", "role", "data", "url", "media_type", "signature", "cache_control", "detail", "file_data", "image_url", "file_url",
    "file_id", "tool_use_id", "tool_call_id", "encrypted_content", "prompt_cache_breakpoint",
})  # fmt: skip


def pieces(field: str, raw: bytes) -> Iterator[str]:
    """The text in a prompt field. Tools count as the JSON that the model is shown, near enough."""
    if field == "tools":
        yield raw.decode()
        return
    try:
        yield from _walk(msgspec.json.decode(raw))
    except (msgspec.MsgspecError, RecursionError):
        yield raw.decode()


def _walk(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _walk(each)
    elif isinstance(value, dict):
        drawn, written = value.get("type") == "image_generation_call", value.get("type") == "text"
        for key, each in value.items():
            if (key not in _NO_TEXT or (written and key == "data")) and not (drawn and key == "result"):
                if key in ("input", "arguments") and isinstance(each, dict):
                    yield msgspec.json.encode(each).decode()
                else:
                    yield from _walk(each)
