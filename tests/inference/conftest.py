"""The real model's file, tokenizer and server, once for all tests; skipped where the package is not installed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.gguf import GGUF, read_gguf
from inference.tokenizer import Tokenizer
from inference.weights import bundled_model

SESSIONS = Path(__file__).parents[3] / "shared" / "data" / "agent_sessions.jsonl"
torch.set_num_threads(1)  # the tiny model gains nothing from more, and loses much on a busy machine


@pytest.fixture(scope="session")
def model_path() -> Path:
    try:
        return bundled_model()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def model_file(model_path: Path) -> GGUF:
    return read_gguf(model_path)


@pytest.fixture(scope="session")
def words(model_file: GGUF) -> Tokenizer:
    return Tokenizer(model_file.meta)


@pytest.fixture(scope="session")
def sessions() -> list[dict[str, Any]]:
    if not SESSIONS.is_file():
        pytest.skip(f"the recorded sessions are not here: {SESSIONS}")
    return [json.loads(line) for line in SESSIONS.read_text().splitlines()]


def start_server(*options: str) -> tuple[subprocess.Popen[str], str]:
    """A server process that says it is ready, and its address."""
    command = [sys.executable, "-m", "inference.server", "--threads", "2", "--kv-tokens", "16384", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready http://"), line
    return process, line.split()[1]


@pytest.fixture(scope="session")
def server(model_path: Path) -> Iterator[str]:
    process, url = start_server()
    yield url
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=120)
    assert process.stdout is not None
    process.stdout.close()
    assert code in (0, -signal.SIGTERM)
