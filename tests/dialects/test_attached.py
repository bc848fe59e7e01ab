"""What a prompt holds beside text is found wherever a dialect puts it, and nowhere else."""
from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import dialects
from gateway.core.part import NOTHING, Attached
from gateway.dialects.attached import attached

PNG = "iVBORw0KGgo" * 200
DATA = f"data:image/png;base64,{PNG}"
SIZE = len(DATA)
CHAT, RESPONSES, MESSAGES = "openai_chat", "openai_responses", "anthropic_messages"
PDF = "data:application/pdf;base64,AAAA"


def found(dialect: str, *contents: Any, whole: bool = False) -> Attached:
    """`whole`: messages or items themselves, else contents of one message."""
    talk = list(contents) if whole else [{"role": "user", "content": list(contents)}]
    body = json.dumps({"model": "m", "max_tokens": 9, "input" if dialect == RESPONSES else "messages": talk}).encode()
    return attached(body, dialects.read(dialect, body).parts)


@pytest.mark.parametrize(("dialect", "content", "expected"), [
    (CHAT, {"type": "image_url", "image_url": {"url": DATA}}, Attached(images=1, image_bytes=SIZE)),
    (CHAT, {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}, Attached(images=1)),
    (CHAT, {"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}, Attached(sounds=1, files=1, file_bytes=len(PNG))),
    (CHAT, {"type": "file", "file": {"file_id": "file-1"}}, Attached(linked=1)),
    (CHAT, {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}, Attached(files=1, file_bytes=len(PDF))),
    (CHAT, {"type": "file", "file": {"filename": "a.csv", "file_data": "data:text/csv;base64,AAAA"}}, NOTHING),
    (CHAT, {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}, Attached(files=1, file_bytes=26)),
    (RESPONSES, {"type": "input_file", "filename": "a.pdf", "file_data": PDF}, Attached(files=1, file_bytes=len(PDF))),
    (RESPONSES, {"type": "input_file", "filename": "notes.md", "file_data": "AAAA"}, NOTHING),
    (MESSAGES, {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}, Attached(files=1, file_bytes=4)),
    (MESSAGES, {"type": "document", "source": {"type": "content", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    ]}}, Attached(1, len(PNG))),
    (CHAT, {"type": "video_url", "video_url": {"url": "https://a.example/b.mp4"}}, Attached(linked=1)),
    (CHAT, {"type": "audio_url", "audio_url": {"url": "https://a.example/b.mp3"}}, Attached(sounds=1, linked=1)),
    (CHAT, {"type": "text", "text": '{"type": "image_url", "image_url": {"url": "' + DATA + '"}}'}, NOTHING),
    (RESPONSES, {"type": "input_image", "image_url": DATA}, Attached(images=1, image_bytes=SIZE)),
    (RESPONSES, {"type": "input_image", "file_id": "file-1"}, Attached(images=1)),
    (RESPONSES, {"type": "input_file", "file_url": "https://a.example/b.pdf"}, Attached(linked=1)),
    (RESPONSES, {"type": "input_text", "text": "an image, a file, an audio"}, NOTHING),
    (MESSAGES, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}, Attached(1, len(PNG))),
    (MESSAGES, {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}, Attached(images=1)),
    (MESSAGES, {"type": "document", "source": {"type": "file", "file_id": "file_1"}}, Attached(linked=1)),
    (MESSAGES, {"type": "document", "source": {"type": "text", "data": "words"}, "title": "a file"}, NOTHING),
    (MESSAGES, {"type": "tool_use", "id": "t", "name": "draw", "input": {"content": [{"type": "image", "data": PNG}]}}, NOTHING),
    (MESSAGES, {"type": "tool_result", "tool_use_id": "t", "content": [
        {"type": "text", "text": "a screenshot"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
    ]}, Attached(1, len(PNG))),
])  # fmt: skip
def test_contents(dialect: str, content: dict[str, Any], expected: Attached) -> None:
    """Where the bytes of an image are text to the provider (in a text, in what a tool is called with) they count as text."""
    assert (found(dialect, content) is NOTHING) == (expected is NOTHING)
    assert found(dialect, content) == expected
    assert found(dialect, content, content) == Attached(*[2 * n for n in expected])


@pytest.mark.parametrize(("dialect", "message", "expected"), [
    (CHAT, {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}, Attached(sounds=1, recalled=1)),
    (CHAT, {"role": "user", "content": "an image and a file \u00e9 \\ " + "word " * 2_000}, NOTHING),
    (RESPONSES, {"type": "item_reference", "id": "msg_1"}, Attached(recalled=1)),
    (RESPONSES, {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PNG}, Attached(1, len(PNG))),
    (RESPONSES, {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": DATA}},
     Attached(1, SIZE)),
    (RESPONSES, {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": DATA}]},
     Attached(1, SIZE)),
    (RESPONSES, {"type": "function_call_output", "call_id": "c", "output": "an image"}, NOTHING),
])  # fmt: skip
def test_messages_and_items(dialect: str, message: dict[str, Any], expected: Attached) -> None:
    assert found(dialect, message, whole=True) == expected


def test_a_part_is_looked_at_once() -> None:
    """Also where nothing is attached."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": DATA}]}]}).encode()
    parts = dialects.read(CHAT, body).parts
    assert attached(body, parts) == Attached(1, SIZE)
    assert attached(b"", parts) == Attached(1, SIZE)
