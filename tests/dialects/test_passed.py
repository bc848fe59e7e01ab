from __future__ import annotations

import pytest

from gateway.core.errors import BadRequest
from gateway.dialects.passed import Wishes, wishes

GEMINI = "/v1beta/models/gemini-9:generateContent"


@pytest.mark.parametrize(("path", "body", "found"), [
    (GEMINI, b'{"generationConfig":{"maxOutputTokens":"900","candidateCount":3}}', Wishes(("gemini-9",), 900, 3)),
    (GEMINI, b'{"model":"cheap"}', Wishes(("gemini-9", "cheap"))),
    ("/model/m-1/converse", b'{"inferenceConfig":{"maxTokens":7}}', Wishes(("m-1",), 7)),
    ("/openai/deployments/d-1/chat/completions?api-version=1", b'{"n":2,"max_tokens":5,"max_completion_tokens":9}', Wishes(("d-1",), 9, 2)),
    ("/x", b' \n{"model":"gemini-\\u0039","max_tokens":1e3}', Wishes(("gemini-9",), 1_000)),
    ("/x", b'{"models":["a","b",3],"max_tokens":null,"n":true}', Wishes(("a", "b"))),
    ("/x", b'{"max_tokens":-1,"n":"two","generationConfig":[]}', Wishes()),
    ("/x", b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--', Wishes(("whisper",))),
    ("/models", b"", Wishes()),
    ("/x", b"<xml/>", Wishes()),
])  # fmt: skip
def test_what_a_request_says_is_found(path: str, body: bytes, found: Wishes) -> None:
    """In the words of each provider; the address counts before the body, which an attacker may have written for us."""
    assert wishes(path, body) == found


@pytest.mark.parametrize("body", [b'{"model":"a","model":"b"}', b'{"model":', b'{"generationConfig":{"candidateCount":1,"candidateCount":9}}'])
def test_what_may_be_read_in_two_ways_is_told(body: bytes) -> None:
    with pytest.raises(BadRequest):
        wishes("/x", body)
