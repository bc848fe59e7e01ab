"""A stream that names no output limit, and a budget that runs out under it: closed as a provider would, and booked."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.build import PLAIN, Gateway, backend, chat_answer, chat_body, chat_stream, event, messages_stream
from tests.upstream import Gate, Site, Upstream, stream, whole

LIMIT_NANOS = 60_000_000
"""More than a first step and less than two, by the tests' prices."""
WORDS = ["word " * 200] * 40
"""Eight thousand tokens or more."""


def responses_stream(*texts: str) -> list[bytes]:
    head = {"id": "resp_1", "object": "response", "created_at": 1_790_000_000, "model": "m-served", "output": [], "tools": [],
            "parallel_tool_calls": True, "tool_choice": "auto", "status": "in_progress", "usage": None}  # fmt: skip
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    documents: list[dict[str, Any]] = [
        {"type": "response.created", "response": head},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        *({"type": "response.output_text.delta", **place, "delta": text, "logprobs": []} for text in texts),
    ]
    return [event({**document, "sequence_number": number}) for number, document in enumerate(documents)]


def chat(gateway: Gateway, model: str) -> tuple[str, object]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key(), max_retries=0) as client:
        chunks = list(client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Go on."}], stream=True))
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks), chunks[-1].choices[0].finish_reason


def messages(gateway: Gateway, model: str) -> tuple[str, object]:
    ask: Any = {"model": model, "messages": [{"role": "user", "content": "Go on."}], "max_tokens": anthropic.omit}
    client = anthropic.Anthropic(base_url=gateway.url, api_key=gateway.key(), max_retries=0)
    with client, client.messages.stream(**ask) as answer:
        final = answer.get_final_message()
    return final.content[0].text, final.stop_reason  # type: ignore[union-attr]


def responses(gateway: Gateway, model: str) -> tuple[str, object]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key(), max_retries=0) as client:
        last: Any = list(client.responses.create(model=model, input="Go on.", stream=True))[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")
    return last.response.output_text, last.response.incomplete_details.reason


CLIENTS = {"chat": (chat, "length"), "messages": (messages, "max_tokens"), "responses": (responses, "max_output_tokens")}
BACKENDS = {"openai": chat_stream, "anthropic": messages_stream, "responses": responses_stream}


@pytest.fixture
def site(upstream: Upstream, tmp_path: Path) -> Site:
    return upstream.site(tmp_path.name)


@pytest.fixture
def start(tmp_path: Path, site: Site) -> Iterator[Callable[[str], Gateway]]:
    made: list[Gateway] = []

    def begin(dialect: str) -> Gateway:
        speaks = {"speaks": ["responses"]} if dialect == "responses" else {}
        settings = {"b": backend(site, "openai" if speaks else dialect, **speaks)}
        policy = {**PLAIN, "budgets": [{"name": "cap", "limit_usd": LIMIT_NANOS / 1e9}]}
        made.append(Gateway(tmp_path, {"backends": settings}, {"plain": policy}))
        return made[-1]

    yield begin
    for gateway in made:
        gateway.close()


@pytest.mark.parametrize(("client", "dialect"), [
    ("chat", "openai"), ("messages", "anthropic"), ("responses", "responses"),
    ("messages", "openai"), ("chat", "anthropic"), ("responses", "openai"),
])  # fmt: skip
def test_a_stream_ends_properly_where_the_money_ends(start: Callable[[str], Gateway], site: Site, client: str, dialect: str) -> None:
    """The client's own library sees an answer that reached its limit; the backend is told to stop; nothing is overspent."""
    gateway, (call, reason) = start(dialect), CLIENTS[client]
    said = BACKENDS[dialect](*WORDS)
    site.says(stream(*said[: len(WORDS)], Gate()))
    text, ended = call(gateway, site.model)
    assert ended == reason
    assert text == "".join(WORDS)[: len(text)]
    assert 4_096 * 3 < len(text) <= len("".join(WORDS)) - 1_000
    (booked,) = gateway.booked(site)
    (attempt,) = booked["attempts"]
    assert attempt["status"] == "cut"
    found = gateway.ask("GET", "/tollway/admin/budgets").json()[0]
    assert found["held_nanos"] == 0
    assert 0 < found["spent_nanos"] <= LIMIT_NANOS
    assert site.requests[0].hung_up.wait(5), "the backend was not told"


def test_a_stream_that_stays_within_its_steps_is_not_touched(start: Callable[[str], Gateway], site: Site) -> None:
    """Byte for byte, with what is needed reserved and no more: two streams fit where one at the model's maximum would not."""
    gateway, gate = start("openai"), Gate()
    said = chat_stream("word " * 200)
    site.says(stream(*said[:2], gate, *said[2:]))
    body = {"model": site.model, "messages": [], "stream": True, "stream_options": {"include_usage": True}}
    gate.open()
    assert gateway.chat(body).content == b"".join(said)
    assert gateway.attempts(site) == {"ok": 1}


def test_what_cost_more_than_was_held_is_marked(start: Callable[[str], Gateway], site: Site) -> None:
    """The truth is booked all the same, and counted for the alarm."""
    gateway = start("openai")
    usage = {"prompt_tokens": 100, "completion_tokens": 2_000, "total_tokens": 2_100}
    site.says(whole(chat_answer(usage=usage)), whole(chat_answer()))
    for _ in range(2):
        assert gateway.chat(chat_body(site.model, max_tokens=20)).status_code == 200
    over, within = (call["attempts"][0] for call in gateway.booked(site, 2))
    assert ("over_hold" in over["flags"], "flags" in within) == (True, False)
    assert over["cost_usd"] == "0.020200000"
    assert gateway.metric("tollway_over_hold_attempts_total") == 1
