"""Clients that people use, each through a gateway process: they work, and what they send and get passes byte for byte.

`make test` puts them into an environment of their own and names it in TOLLWAY_CLIENTS_PYTHON (for aider: TOLLWAY_AIDER_PYTHON, by
hand). A client that is not installed is skipped by name.
"""
from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.build import (
    PLAIN,
    Process,
    backend,
    chat_answer,
    chat_stream,
    chat_usage,
    messages_answer,
    messages_stream,
)
from tests.clients.hop import Hop
from tests.upstream import Reply, Site, Upstream, stream, whole

PROGRAMS = Path(__file__).parent / "programs"
PYTHON = os.environ.get("TOLLWAY_CLIENTS_PYTHON", sys.executable)
AIDER = os.environ.get("TOLLWAY_AIDER_PYTHON", PYTHON)
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


def needs(module: str, python: str = PYTHON) -> None:
    """Skips if the interpreter has no such module."""
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    if subprocess.run([python, "-c", look], check=False, capture_output=True, timeout=240).returncode:
        pytest.skip(f"{module} is not installed for {python}; see TOLLWAY_CLIENTS_PYTHON")


@pytest.fixture(scope="module")
def sites(upstream: Upstream) -> dict[str, Site]:
    return {"openai": upstream.site("client-o"), "anthropic": upstream.site("client-a")}


@pytest.fixture(scope="module")
def process(sites: dict[str, Site], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    backends = {dialect: backend(site, dialect) for dialect, site in sites.items()}
    with Process(tmp_path_factory.mktemp("clients"), {"backends": backends}, {"plain": PLAIN}) as running:
        yield running


@pytest.fixture
def hop(process: Process, sites: dict[str, Site]) -> Iterator[Hop]:
    for site in sites.values():
        site.requests.clear()
    listening = Hop(process.port)
    yield listening
    listening.close()


def tool_answer(dialect: str) -> Reply:
    if dialect == "anthropic":
        block = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}
        return whole(messages_answer(content=[block], stop_reason="tool_use"))
    answer = chat_answer()
    answer["choices"][0] |= {"message": {"role": "assistant", "content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}
    return whole(answer)


def script(dialect: str) -> list[Reply]:
    """An answer, a stream, a tool call, a final answer: what each program asks for, in its order."""
    answer = messages_answer if dialect == "anthropic" else chat_answer
    streamed = messages_stream() if dialect == "anthropic" else chat_stream(usage=True)
    return [whole(answer("Hello, Grüße 🌍")), stream(*streamed), tool_answer(dialect), whole(answer("It is 12 degrees."))]


def run(argv: list[str], hop: Hop, process: Process, model: str, cwd: Path, **env: str) -> str:
    known = {"GATEWAY": hop.url, "KEY": process.key(), "MODEL": model, "HOME": str(cwd), "NO_PROXY": "*", "PYTHONUTF8": "1", **env}
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "TMPDIR")}
    done = subprocess.run(argv, env={**kept, **known}, cwd=cwd, capture_output=True, text=True, timeout=240, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def digests(bodies: list[bytes]) -> list[str]:
    return [hashlib.sha256(body).hexdigest() for body in bodies]


def without_usage_wish(body: bytes) -> Any:
    """A streamed chat request but for what the gateway asks for in addition."""
    document = json.loads(body)
    document.pop("stream_options", None)
    return document


def assert_untouched(hop: Hop, site: Site, replies: list[Reply]) -> None:
    """What the client sent is what the model server got, and the other way round: equal hashes. A chat stream whose usage the
    client did not ask for is asked for it; nothing else of it differs, and the answer lacks the usage event only."""
    sent, arrived = hop.requests, [request.body for request in site.requests]
    assert len(sent) == len(arrived)
    for mine, theirs, answer, reply in zip(sent, arrived, hop.answers, replies, strict=False):
        document = json.loads(mine)
        asks = "messages" in document and document.get("stream") and site.name == "client-o" and not document.get("stream_options")
        if asks:
            assert without_usage_wish(mine) == without_usage_wish(theirs)
            assert answer == reply.body.replace(chat_usage(), b"")
        else:
            assert digests([mine]) == digests([theirs])
            assert digests([answer]) == digests([reply.body])


@pytest.mark.parametrize(("program", "module", "dialect"), [
    ("langchain_openai_chat", "langchain_openai", "openai"), ("langchain_anthropic_messages", "langchain_anthropic", "anthropic"),
    ("pydantic_ai_openai", "pydantic_ai", "openai"), ("pydantic_ai_anthropic", "pydantic_ai", "anthropic"),
])  # fmt: skip
def test_a_framework_works_and_its_bytes_pass(
    program: str, module: str, dialect: str, hop: Hop, process: Process, sites: dict[str, Site], tmp_path: Path
) -> None:
    """Only the base URL and the key are ours: answer, stream in pieces, tool call and result, usage with its cached part."""
    needs(module)
    site, replies = sites[dialect], script(dialect)
    site.says(*replies)
    said = json.loads(run([PYTHON, str(PROGRAMS / f"{program}.py")], hop, process, site.model, tmp_path))
    assert said == {
        "answer": "Hello, Grüße 🌍", "stream": "Hello there.", "pieces": 2, "tool": {"city": "Oslo"}, "final": "It is 12 degrees.",
        "input_tokens": 100, "cached": 60,
    }  # fmt: skip
    assert len(site.requests) == 4
    assert_untouched(hop, site, replies)


def test_the_llm_command_works_and_its_bytes_pass(hop: Hop, process: Process, sites: dict[str, Site], tmp_path: Path) -> None:
    """`llm`, with a model added in its own YAML file: streamed, and whole with --no-stream."""
    needs("llm")
    site = sites["openai"]
    models = [{"model_id": "tollway", "model_name": site.model, "api_base": f"{hop.url}/v1", "api_key_name": "tollway"}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    replies = [stream(*chat_stream()), whole(chat_answer("Hello whole."))]
    site.says(*replies)
    argv = [PYTHON, "-m", "llm", "-m", "tollway", "--key", process.key(), "--no-log"]
    assert run([*argv, "Say hello."], hop, process, site.model, tmp_path, LLM_USER_PATH=str(tmp_path)) == "Hello there.\n"
    assert run([*argv, "--no-stream", "Grüße 🌍"], hop, process, site.model, tmp_path, LLM_USER_PATH=str(tmp_path)) == "Hello whole.\n"
    assert_untouched(hop, site, replies)


def test_a_coding_client_edits_a_file_and_its_bytes_pass(hop: Hop, process: Process, sites: dict[str, Site], tmp_path: Path) -> None:
    """aider asks for a change, gets whole files in a stream, and writes them."""
    needs("aider", AIDER)
    site = sites["openai"]
    (tmp_path / "hello.py").write_text("print('hello')\n")
    text = ["hello.py\n```\n", "print('good", "bye')\n", "```\n"]
    replies = [stream(*chat_stream(*text))]
    site.says(*replies)
    argv = [
        AIDER, "-m", "aider", "--model", f"openai/{site.model}", "--openai-api-base", f"{hop.url}/v1", "--openai-api-key", process.key(),
        "--edit-format", "whole", "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-analytics",
        "--map-tokens", "0", "--message", "Say goodbye instead.", "hello.py",
    ]  # fmt: skip
    run(argv, hop, process, site.model, tmp_path, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert (tmp_path / "hello.py").read_text() == "print('goodbye')\n"
    assert_untouched(hop, site, replies)


def test_what_was_called_is_in_the_ledger(process: Process, sites: dict[str, Site]) -> None:
    """Every call of a client above is booked with its tokens."""
    called = {name: len(site.requests) for name, site in sites.items() if site.requests}
    if not called:
        pytest.skip("no client is installed; see TOLLWAY_CLIENTS_PYTHON")
    for name in called:
        rows = process.ask("GET", f"/tollway/usage?by=status&model={sites[name].model}").json()["rows"]
        assert {row["status"] for row in rows} == {"ok"}
        assert all(row["cache_read"] for row in rows)


