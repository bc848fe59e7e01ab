from __future__ import annotations

import pytest

from gateway import dialects
from gateway.core.errors import BadRequest
from gateway.core.prompt import Prompt
from gateway.core.usage import TokenUsage
from gateway.dialects import openai_embeddings
from gateway.dialects.sse import Malformed


def test_what_an_answer_says() -> None:
    """Its usage, with no output to pay for; vectors are skipped, an error is one."""
    seen = openai_embeddings.look(b'{"data":[{"embedding":"AAEC"}],"model":"m","usage":{"prompt_tokens":8,"total_tokens":8}}')
    assert (seen.usage, seen.served_model, seen.finish_reason) == (TokenUsage(uncached=8, output=0), "m", "stop")
    assert openai_embeddings.look(b'{"data":[],"usage":null}').usage is None
    assert openai_embeddings.look(b'{"error":{"message":"x"}}').error == "x"
    with pytest.raises(Malformed):
        openai_embeddings.look(b"[]")
    assert openai_embeddings.events({}) == []


def test_it_is_never_translated() -> None:
    """Not to this API and not from it."""
    with pytest.raises(BadRequest):
        openai_embeddings.parse_request(b"{}")
    with pytest.raises(BadRequest):
        openai_embeddings.render_request(Prompt(model="m", messages=()))


def test_a_request_needs_model_and_input() -> None:
    """The error names what is missing."""
    assert dialects.read(openai_embeddings.NAME, b'{"model":"m","input":"x","stream":true}').stream is False
    assert openai_embeddings.usage_asked(b"{}", {}) is None
    for body, param in ((b'{"input":"x"}', "model"), (b'{"model":"m"}', "input")):
        with pytest.raises(BadRequest) as caught:
            dialects.read(openai_embeddings.NAME, body)
        assert caught.value.param == param
