"""What the engine's server refuses, asked over HTTP: the status, the parameter, and no work done for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from inference.ask import Door
from tests.inference.served import served


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A pool of 256 tokens under a model of 512, and room for two who wait."""
    with served(kv_tokens=256, door=Door(requests=2)) as address:
        yield address


def _body(**changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4} | changes


def _rows(url: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("tollway_engine:computed_rows"))


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        pytest.param({"messages": [{"role": "user", "content": "x" * 300}]}, "messages", "context_length_exceeded", id="never fits the pool"),
        pytest.param({"messages": [{"role": "user", "content": "x" * 900}]}, "messages", "context_length_exceeded", id="over the context"),
        *(pytest.param({name: value}, name, None, id=f"{name} {value}") for name, value in {
            "temperature": 2.5, "top_p": 1.5, "top_k": -2, "min_p": -0.1, "max_tokens": 0, "presence_penalty": -3, "seed": "x", "n": 0,
            "frequency_penalty": 9, "repetition_penalty": 0, "priority": 5000, "stop": 7, "logit_bias": {"99999": 1}, "top_logprobs": 99,
            "cache_salt": "", "service_tier": "gold", "stream": 1,
        }.items()),
    ],
)  # fmt: skip
def test_a_bad_request_is_a_400_before_any_work(url: str, changes: dict[str, Any], param: str, code: str | None) -> None:
    before = _rows(url)
    answer = httpx.post(f"{url}/v1/chat/completions", json=_body(**changes))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), answer.text
    assert _rows(url) == before


async def test_a_full_queue_says_when_to_come_back(url: str) -> None:
    """More than run and wait at once get 503 with Retry-After, and a good call later is served."""
    async with httpx.AsyncClient(timeout=60) as client:
        calls = [client.post(f"{url}/v1/chat/completions", json=_body(max_tokens=100, ignore_eos=True)) for _ in range(16)]
        answers = await asyncio.gather(*calls)
        refused = [answer for answer in answers if answer.status_code == 503]
        assert {answer.status_code for answer in answers} == {200, 503}
        assert all(int(answer.headers["retry-after"]) >= 1 and answer.json()["error"]["code"] == "queue_full" for answer in refused)
        assert (await client.post(f"{url}/v1/chat/completions", json=_body())).status_code == 200
