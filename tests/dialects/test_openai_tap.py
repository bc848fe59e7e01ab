from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.dialects import openai_tap, sse
from gateway.dialects.sse import Malformed
from gateway.dialects.watch import Verdict

DELTA = {"choices": [{"index": 0, "delta": {"content": 'a "usage": {"error": 1}'}, "finish_reason": None}], "usage": None}


@pytest.mark.parametrize(("document", "verdict", "plain"), [
    (DELTA, Verdict.PASS, True),
    ({"choices": [{"delta": {"content": "a"}}]}, Verdict.PASS, True),
    ({**DELTA, "usage": {"prompt_tokens": 1}}, Verdict.HIDE, False),
    ({**DELTA, "x_groq": {"usage": {"prompt_tokens": 1}}}, Verdict.PASS, False),
    ({"choices": []}, Verdict.PASS, False),
    ({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, Verdict.PASS, False),
    ({"choices": [{"index": 1, "delta": {}, "finish_reason": None}]}, Verdict.PASS, False),
    ({"choices": [{"index": 0, "delta": {}, "usage": {"prompt_tokens": 1}}]}, Verdict.PASS, False),
    ({"error": {"message": "x"}}, Verdict.ERROR, False),
    ({"error": None, **DELTA}, Verdict.PASS, True),
])
@pytest.mark.parametrize("spaces", [False, True])
def test_what_a_frame_is(document: dict[str, Any], verdict: Verdict, plain: bool, spaces: bool) -> None:
    """A frame is plain only if it says nothing to note, whatever its spaces and whatever its text quotes."""
    raw = sse.frame(orjson.dumps(document).replace(b'":', b'": ') if spaces else orjson.dumps(document))
    tap = openai_tap.Tap()
    assert not tap.plain(raw)    # before the first token all is looked at
    tap.seen.started = True
    assert tap.plain(raw) is plain
    assert tap.look(raw) is verdict


@pytest.mark.parametrize("raw", [b"data: {no\n\n", b"data: [1]\n\n", b'data: {"choices":5}\n\n', b"data: \xff\n\n"])
def test_no_event_of_ours_is_never_plain(raw: bytes) -> None:
    """What is not JSON, or not this shape, gets the slow look."""
    tap = openai_tap.Tap()
    tap.seen.started = True
    assert not tap.plain(raw)


def test_what_is_no_object_is_malformed() -> None:
    """JSON of another kind is nothing a client could use."""
    with pytest.raises(Malformed):
        openai_tap.Tap().look(b"data: [1]\n\n")


def test_usage_on_several_lines_can_be_hidden() -> None:
    """Data that is cut into lines is written anew, the rest of the event kept."""
    shown = openai_tap.Tap().hidden(b'data: {"choices":[{}],\ndata: "usage":{"prompt_tokens":1}}\n\n')
    assert shown == b'data: {"choices":[{}],"usage":null}\n\n'


@pytest.mark.parametrize(("document", "text"), [
    ({"error": {"message": "m"}}, "m"), ({"error": {"type": "t"}}, "t"), ({"error": "e"}, "e"), ({"message": "m"}, "m"), ({"detail": "d"}, "d"), ({}, "The backend reported an error."),
])
def test_error_text(document: dict[str, Any], text: str) -> None:
    """The message is found in every usual shape."""
    assert openai_tap.error_text(document) == text
