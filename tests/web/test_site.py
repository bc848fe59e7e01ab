"""The paths that Litestar has: loaded beside the first calls, and asked as if it had always been there."""
import subprocess
import sys
from pathlib import Path

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
