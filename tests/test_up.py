"""`tollway up` as a newcomer meets it: the real engine, the real gateway, both SDKs, and nothing left behind."""
from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anthropic
import httpx
import openai
import psutil
import pytest

from tests.build import free_port

MODEL = "smollm2-135m-instruct"
START_S = 300


@dataclass
class Up:
    """A running `tollway up`."""

    process: subprocess.Popen[str]
    url: str
    dashboard: str
    data: Path
    said: str

    def key(self, name: str) -> str:
        return (self.data / "keys" / name).read_text().strip()


def start(data: Path, *options: str) -> Up:
    port, dashboard = free_port(), free_port()
    command = [
        sys.executable, "-m", "gateway.cli", "up", "--port", str(port), "--dashboard-port", str(dashboard),
        "--data", str(data), *options,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=data.parent)
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if "Ctrl-C stops all" in line:
            return Up(process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", data, said)
    raise AssertionError(f"tollway up ended: {said}")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = start(tmp_path_factory.mktemp("up") / "data")
    yield running
    running.process.send_signal(signal.SIGINT)
    running.process.wait(240)
    running.process.stdout.close()  # type: ignore[union-attr]


pytestmark = pytest.mark.timeout(START_S * 2)


def test_it_says_where_everything_is(up: Up) -> None:
    """The first start prints addresses and both keys, and keeps the keys where only the owner reads them."""
    assert up.url in up.said
    assert up.dashboard in up.said
    for name in ("admin", "demo"):
        assert up.key(name) in up.said
        assert (up.data / "keys" / name).stat().st_mode & 0o777 == 0o600
    assert httpx.get(f"{up.dashboard}/_stcore/health", timeout=240).status_code == 200
    assert f"demo --data {up.data.name} " in up.said  # which finds its port


def test_the_openai_sdk_works_unchanged(up: Up) -> None:
    """Plain, streamed and with tools; its bill has all three kinds of tokens; errors are the SDK's own."""
    with openai.OpenAI(base_url=f"{up.url}/v1", api_key=up.key("demo"), max_retries=0) as client:
        assert MODEL in [model.id for model in client.models.list()]
        messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=16, temperature=0  # type: ignore[arg-type]
        )
        answer = raw.parse()
        assert "Paris" in (answer.choices[0].message.content or "")
        assert answer.usage is not None
        assert raw.headers["x-tollway-tokens"].endswith(f"output={answer.usage.completion_tokens}")
        assert float(raw.headers["x-tollway-cost-usd"]) > 0
        chunks = list(
            client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, stream=True)  # type: ignore[arg-type]
        )
        assert all(chunk.usage is None for chunk in chunks)
        tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
        asked = client.chat.completions.create(
            model=MODEL, messages=messages, tools=[tool], max_tokens=16, tool_choice="required"  # type: ignore[list-item, arg-type]
        )
        assert asked.choices[0].message.tool_calls
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nothing", messages=messages)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError) as long:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
        assert long.value.code == "context_length_exceeded"
    with (
        openai.OpenAI(base_url=f"{up.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_the_anthropic_sdk_works_unchanged(up: Up) -> None:
    """The same engine, spoken to in the other dialect."""
    with anthropic.Anthropic(base_url=up.url, api_key=up.key("demo"), max_retries=0) as client:
        message = client.messages.create(model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "Say hello."}])
        assert message.content[0].type == "text"
        assert message.usage.output_tokens > 0
        with client.messages.stream(
            model=MODEL, max_tokens=8, messages=[{"role": "user", "content": "Say hello."}]
        ) as stream:
            assert "".join(stream.text_stream)
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(model="nothing", max_tokens=8, messages=[{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("wish", ["interactive", "batch"])
def test_the_policy_decides_the_lane_and_says_why(up: Up, wish: str) -> None:
    """Batch goes standard, which is cheaper; interactive where cost + wait are least by what the lanes were seen to do. Headers
    and the call itself say why."""
    answer = httpx.post(
        f"{up.url}/v1/chat/completions",
        headers={"authorization": f"Bearer {up.key('demo')}", "x-tollway-class": wish},
        json={"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
        timeout=240,
    )
    lane = answer.headers["x-tollway-lane"]
    assert wish in answer.headers["x-tollway-reason"]
    call = httpx.get(
        f"{up.url}/tollway/calls/{answer.headers['x-tollway-call']}",
        headers={"authorization": f"Bearer {up.key('demo')}"},
        timeout=240,
    ).json()
    assert (call["class"], call["lane"]) == (wish, lane)
    assert call["attempts"][0]["served_tier"] == ("priority" if lane == "fast" else "default")
    assert {row["lane"] for row in call["decision"]} == {"embedded/fast", "embedded/standard"}
    sums = {row["lane"].partition("/")[2]: row["sum_usd"] for row in call["decision"] if "refused" not in row}
    assert sums[lane] <= 1.02 * min(sums.values()) + 1e-9 or "tried because" in answer.headers["x-tollway-reason"]
    assert lane == "standard" or wish == "interactive"


def test_the_next_turn_reads_the_cache(up: Up) -> None:
    """Cached tokens of turn two cover turn one to the block, as the engine counts them."""
    messages = [{"role": "user", "content": "Tell me about toll roads. " * 20}]
    headers = {"authorization": f"Bearer {up.key('demo')}"}
    usage = []
    for _ in range(2):
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}
        answer = httpx.post(f"{up.url}/v1/chat/completions", headers=headers, json=body, timeout=240).json()
        usage.append(answer["usage"])
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    assert usage[1]["prompt_tokens_details"]["cached_tokens"] >= usage[0]["prompt_tokens"] - 16


def test_a_second_one_on_the_same_data_is_told(up: Up) -> None:
    """Two writers would spoil one database: the second does not start, and says why."""
    command = [sys.executable, "-m", "gateway.cli", "up", "--port", str(free_port()), "--dashboard-port", str(free_port())]
    second = subprocess.run([*command, "--data", str(up.data)], capture_output=True, text=True, timeout=240)
    assert second.returncode == 1
    assert "--data" in second.stderr


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    """The message names the port and the option that chooses another; nothing is left running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "gateway.cli", "up", "--port", str(port), "--data", str(tmp_path / "d")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 1
    assert str(port) in ended.stderr
    assert "--port" in ended.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_nothing_is_left_running(tmp_path: Path, how: signal.Signals) -> None:
    """Whichever way it ends, engine and gateway end with it."""
    running = start(tmp_path / "data", "--no-dashboard")
    children = psutil.Process(running.process.pid).children(recursive=True)
    assert len(children) >= 2
    os.kill(running.process.pid, how)
    running.process.wait(240)
    running.process.stdout.close()  # type: ignore[union-attr]
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive


def test_the_second_start_keeps_keys_and_ledger(tmp_path: Path) -> None:
    """Keys are shown once; what was booked is still there."""
    for n in (1, 2):
        running = start(tmp_path / "data", "--no-dashboard")
        headers = {"authorization": f"Bearer {running.key('demo')}"}
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        httpx.post(f"{running.url}/v1/chat/completions", headers=headers, json=body, timeout=240).raise_for_status()
        total = httpx.get(f"{running.url}/tollway/usage", headers=headers, timeout=240).json()["total"]
        running.process.send_signal(signal.SIGINT)
        running.process.wait(240)
        running.process.stdout.close()  # type: ignore[union-attr]
        assert total["calls"] == n
        assert (running.key("demo") in running.said) == (n == 1)
        time.sleep(0.1)
