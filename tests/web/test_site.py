"""The paths that Litestar has: loaded beside the first calls, and asked as if it had always been there."""
import subprocess
import sys
from pathlib import Path

import pytest

from tests.build import PLAIN, Gateway, backend
from tests.upstream import Site


def test_a_start_does_not_wait_for_it() -> None:
    late = ("litestar", "cel", "alembic", "gateway.commands", "gateway.demo", "torch", "tiktoken", "streamlit")
    said = f"import sys, gateway.cli, gateway.serve; print([name for name in {late!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", said], capture_output=True, text=True).stdout.strip() == "[]"


def test_what_is_asked_while_it_loads_is_answered(openai: Site, tmp_path: Path) -> None:
    with Gateway(tmp_path, {"backends": {"only": backend(openai)}}, {"plain": PLAIN}) as gateway:
        assert gateway.http.get(gateway.url + "/readyz").status_code == 200
        said = gateway.http.get(gateway.url + "/nowhere").json()
        assert said["error"]["message"].startswith("there is nothing at /nowhere")


@pytest.mark.parametrize(("path", "meant"), [
    ("/chat/completions", "/v1/chat/completions"), ("/v1/v1/messages", "/v1/messages"), ("//v1/chat/completions", "/v1/chat/completions"),
    ("/v1/messages/count_tokens/", "/v1/messages/count_tokens"), ("/openai/v1/responses", "/v1/responses"), ("/models", "/v1/models"),
    ("/nowhere", None), ("/v1", None), ("/v1/completions", None),
])  # fmt: skip
def test_a_slip_in_a_base_url_is_told(gateway: Gateway, path: str, meant: str | None) -> None:
    """In the shape of the caller's API, with the path that was meant; nothing is served at another place than its own."""
    answer = gateway.http.post(gateway.url + path, json={}, headers={"anthropic-version": "2023-06-01"})
    said = answer.json()
    assert (answer.status_code, said["type"], said["error"]["type"]) == (404, "error", "not_found_error")
    assert ("did you mean" in said["error"]["message"]) == (meant is not None)
    assert f"did you mean {meant}?" in said["error"]["message"] or meant is None
