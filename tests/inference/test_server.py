"""The real model behind its real server: lanes, cache, errors, hang-ups, and counters that add up."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.inference.conftest import start_server

MODEL = "smollm2-135m-instruct"
COPY = "Repeat this list: alpha 1, beta 2, gamma 3, alpha 1, beta 2, gamma 3, alpha 1, beta 2, gamma 3."
pytestmark = pytest.mark.timeout(600)


def _body(content: str, **options: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 24,
    } | options


def test_a_call_waits_while_the_model_loads(model_path: Path) -> None:
    """Sent to the inherited socket before the engine's process has begun, it is answered like any other."""
    command = [sys.executable, "-m", "inference.server", "--kv-tokens", "1024", "--threads", "1", "--listen-fd"]
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        early = pool.submit(_post, f"http://127.0.0.1:{listener.getsockname()[1]}", _body("Hello", max_tokens=2))
        process = subprocess.Popen(
            [*command, str(listener.fileno())], pass_fds=(listener.fileno(),), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            assert early.result(150)["usage"]["completion_tokens"] == 2
        finally:
            process.terminate()
            process.wait(120)


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def _stream(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body | options, timeout=120) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def _counters(url: str) -> dict[str, float]:
    """Token counters summed over tiers."""
    text = httpx.get(f"{url}/metrics", timeout=120).text
    found: dict[str, float] = {}
    for name, value in re.findall(
        r"^tollway_engine:(\w+_tokens(?:_cached)?_total)\{[^}]*service_tier[^}]*\} (\S+)$", text, re.M
    ):
        found[name] = found.get(name, 0) + float(value)
    return found


def _idle(url: str) -> dict[str, Any]:
    for _ in range(2_400):
        load = httpx.get(f"{url}/load", timeout=120).json()
        if not load["server_load"] and not load["blocks"]["held"]:
            return load  # type: ignore[no-any-return]
        time.sleep(0.05)
    raise AssertionError(load)


def test_it_answers_and_knows_the_capital(server: str) -> None:
    """The weights, the tokenizer and the chat format fit together."""
    answer = _post(server, _body("What is the capital of France? Answer in one sentence."))
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["prompt_tokens_details"] == {
        "cached_tokens": answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        "audio_tokens": 0,
    }
    assert answer["service_tier"] == "default"


def test_lanes_say_the_same_and_share_the_cache(server: str) -> None:
    """The fast lane streams the standard lane's tokens, drafts are accepted, and the prompt is found in the cache."""
    slow = _post(server, _body(COPY, max_tokens=48))
    chunks = _stream(server, _body(COPY, max_tokens=48, service_tier="priority"))
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text == slow["choices"][0]["message"]["content"]
    assert {chunk["service_tier"] for chunk in chunks} == {"priority"}
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == slow["usage"]["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == (usage["prompt_tokens"] - 1) // 16 * 16
    metrics = httpx.get(f"{server}/metrics").text
    assert float(re.findall(r"spec_decode_num_accepted_tokens_total\S* (\S+)", metrics)[-1]) > 0


def test_salts_do_not_share(server: str) -> None:
    """Another cache_salt computes the prompt anew, the same one finds it."""
    cached = [
        _post(server, _body("Salted " * 30, max_tokens=1, cache_salt=salt))["usage"]["prompt_tokens_details"][
            "cached_tokens"
        ]
        for salt in ("a", "b", "a")
    ]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


def test_a_forced_call_is_valid_json(server: str) -> None:
    """tool_choice with a name gives that call, with an object for arguments, and finish_reason tool_calls."""
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}  # fmt: skip
    choice = {"type": "function", "function": {"name": "get_weather"}}
    body = _body("What is the weather in Paris?", tools=[tool], tool_choice=choice, max_tokens=60)
    answer = _post(server, body)["choices"][0]
    call = answer["message"]["tool_calls"][0]
    assert call["function"]["name"] == "get_weather"
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert answer["finish_reason"] in ("tool_calls", "length")


@pytest.mark.parametrize(
    ("content", "status", "code", "param"),
    [
        pytest.param("{", 400, "invalid_json", None, id="malformed"),
        pytest.param("[1]", 400, "invalid_json", None, id="no object"),
        pytest.param(json.dumps(_body("x", model="gpt-7")), 404, "model_not_found", "model", id="unknown model"),
        pytest.param(json.dumps({"messages": []}), 400, None, "model", id="no model"),
        pytest.param(json.dumps(_body("x", temperature=9)), 400, None, "temperature", id="out of range"),
        pytest.param(json.dumps(_body("word " * 9000)), 400, "context_length_exceeded", "messages", id="too long"),
    ],
)
def test_errors_are_openais(server: str, content: str, status: int, code: str | None, param: str | None) -> None:
    """Status, code and parameter are told in OpenAI's shape, before any work."""
    before = _counters(server)
    answer = httpx.post(f"{server}/v1/chat/completions", content=content, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert _counters(server) == before


def test_paths(server: str) -> None:
    """Models, health, tokenize and unknown paths answer as they should."""
    assert httpx.get(f"{server}/v1/models").json()["data"][0] | {"created": 0} == {
        "id": MODEL, "object": "model", "created": 0, "owned_by": "tollway", "max_model_len": 8192,
    }  # fmt: skip
    assert httpx.get(f"{server}/v1/models/{MODEL}").json()["id"] == MODEL
    assert httpx.get(f"{server}/v1/models/other").status_code == 404
    health = httpx.get(f"{server}/health").json()
    assert health["status"] == "ok"
    assert isinstance(health["exact"], bool)
    assert httpx.post(f"{server}/tokenize", json={"prompt": "Hello world"}).json()["count"] == 2
    messages = {"messages": [{"role": "user", "content": "Hi"}]}
    assert httpx.post(f"{server}/tokenize", json=messages).json()["count"] > 20
    assert httpx.get(f"{server}/nothing").status_code == 404
    assert httpx.get(f"{server}/v1/chat/completions").status_code == 405


def test_completions_say_what_chat_says(server: str) -> None:
    """The same ids through /v1/completions give the same text, and find the chat's prompt in the cache."""
    body = _body("Name three colours.", max_tokens=12)
    ids = httpx.post(f"{server}/tokenize", json=body, timeout=120).json()["tokens"]
    chat = _post(server, body)
    asked = {"model": MODEL, "prompt": ids, "max_tokens": 12, "logprobs": 2}
    answer = httpx.post(f"{server}/v1/completions", json=asked, timeout=60).json()
    assert answer["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(ids) - 1) // 16 * 16
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == answer["usage"]["completion_tokens"]


def test_an_answer_follows_its_schema_in_both_lanes(server: str) -> None:
    """response_format gives JSON that fits, the same with and without speculation."""
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "people": {"type": "integer", "maximum": 99999999}}, "required": ["city", "people"], "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    bodies = [_body("The capital of France?", max_tokens=40, response_format=form, service_tier=t) for t in ("default", "priority")]
    texts = [_post(server, body)["choices"][0]["message"]["content"] for body in bodies]
    assert texts[0] == texts[1]
    assert set(json.loads(texts[0])) == {"city", "people"}


def test_kv_events_tell_what_is_cached(server: str) -> None:
    """A new listener gets the content, then each block that a request stores, with its tokens."""
    with httpx.stream("GET", f"{server}/kv_events", timeout=120) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        assert json.loads(next(lines)) == {"type": "AllBlocksCleared"}
        body = _body("Marked by a word: xylophone. " * 8, max_tokens=1, cache_salt="events")
        ids = httpx.post(f"{server}/tokenize", json=body, timeout=120).json()["tokens"]
        _post(server, body)
        whole = [tuple(ids[at : at + 16]) for at in range(0, len(ids) // 16 * 16, 16)]
        stored: dict[int, dict[str, Any]] = {}
        chain: list[tuple[int, ...]] = []
        while chain != whole:
            event = json.loads(next(lines))
            if event["type"] == "BlockStored":
                at = event["block_hashes"][0]
                stored[at], chain = event, []
                while at in stored:
                    chain.insert(0, tuple(stored[at]["token_ids"]))
                    at = stored[at]["parent_block_hash"]


def test_a_hang_up_frees_everything_and_the_counters_add_up(server: str) -> None:
    """A client that leaves mid-stream is aborted at once; counters grow by what answered requests were told, and its part."""
    _idle(server)
    before = _counters(server)
    told = [_post(server, _body(f"Say {word}", max_tokens=4))["usage"] for word in ("one", "two")]
    seen = 0
    with httpx.stream(
        "POST", f"{server}/v1/chat/completions", timeout=120,
        json=_body("Tell a long story.", max_tokens=4000, stream=True, ignore_eos=True),
    ) as answer:
        for line in answer.iter_lines():
            seen += '"content"' in line and '"role"' not in line
            if seen == 3:
                break
    _idle(server)
    after = _counters(server)
    grown = {name: after[name] - before[name] for name in after}
    assert grown["prompt_tokens_total"] > sum(usage["prompt_tokens"] for usage in told)
    generated = grown["generation_tokens_total"] - sum(usage["completion_tokens"] for usage in told)
    assert 3 <= generated < 4000, "what it was asked for was not made to its end"
    repeat = _post(server, _body("Say one", max_tokens=4))["usage"]
    final = _counters(server)
    assert final["prompt_tokens_total"] - after["prompt_tokens_total"] == repeat["prompt_tokens"]
    assert (
        final["prompt_tokens_cached_total"] - after["prompt_tokens_cached_total"]
        == repeat["prompt_tokens_details"]["cached_tokens"]
    )


def test_a_hang_up_during_the_prompt_is_noticed(server: str) -> None:
    """Also before the first token nothing is computed for a client that has gone."""
    body = json.dumps(_body("word " * 5000, stream=True)).encode()
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        client.sendall(head + body)
        for _ in range(100):
            if httpx.get(f"{server}/load", timeout=120).json()["num_requests_running"]:
                break
            time.sleep(0.02)
    _idle(server)


def test_it_leaves_with_its_parent(model_path: Path, tmp_path: Path) -> None:
    """Where the process that started it is killed hard, the server ends by itself."""
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'inference.server', '--exit-with-parent', '--kv-tokens', '512', '--weights', 'fp32'],"
        " stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)\n"
        "print(p.stdout.readline().split()[1], p.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url, pid = parent.stdout.readline().split()
        assert httpx.get(f"{url}/health", timeout=120).status_code == 200
        parent.kill()
    for _ in range(2_400):
        try:
            os.kill(int(pid), 0)
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")


def test_sigterm_ends_it_while_it_works(model_path: Path) -> None:
    """A running request does not keep it for longer than the drain time and a little."""
    process, url = start_server("--kv-tokens", "4096")
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", timeout=120, json=_body("Tell a story.", max_tokens=3000, stream=True, ignore_eos=True)
    ) as answer:
        lines, said = answer.iter_lines(), list[str]()
        next(lines)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(httpx.HTTPError):
            said += lines
    process.wait(timeout=120)
    assert not any('"finish_reason":"length"' in line.replace(" ", "") for line in said), "the story was not told to its end"
    assert process.stdout is not None
    process.stdout.close()
