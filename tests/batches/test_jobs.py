"""What providers' batch APIs say, as we read it; the requests themselves are tested in `test_worker.py` over HTTP."""
from __future__ import annotations

import json

import pytest

from gateway.batches.jobs import _answers


@pytest.mark.parametrize(("row", "found"), [
    pytest.param({"custom_id": "a", "response": {"status_code": 200, "body": {"x": 1}}, "error": None}, ("a", 200, b'{"x":1}'), id="openai"),
    pytest.param({"custom_id": "a", "response": None, "error": {"code": "batch_expired"}}, None, id="openai: not done"),
    pytest.param({"custom_id": "a", "result": {"type": "succeeded", "message": {"x": 1}}}, ("a", 200, b'{"x":1}'), id="anthropic"),
    pytest.param({"custom_id": "a", "result": {"type": "errored", "error": {"e": 1}}}, ("a", 400, b'{"e":1}'), id="anthropic: refused"),
    pytest.param({"custom_id": "a", "result": {"type": "expired"}}, None, id="anthropic: not done"),
    pytest.param({"custom_id": 7, "response": {"status_code": 200, "body": {}}}, None, id="nobody's"),
    pytest.param([1], None, id="no object"),
])  # fmt: skip
def test_an_answer_is_read_whoever_gives_it(row: object, found: tuple[str, int, bytes] | None) -> None:
    """What was not done is left out, so that it is done again; broken lines are passed over."""
    content = b"{broken\n\n" + json.dumps(row).encode() + b"\n"
    assert list(_answers(content)) == ([] if found is None else [found])
