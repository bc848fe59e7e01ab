from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx
import pytest

from gateway.demo.replay import MODEL, Replay, Side, Turn
from gateway.demo.sessions import Session
from tests.demo.conftest import session

Handler = Callable[[httpx.Request], httpx.Response]
STREAMING, WHOLE = Side("people", True, "k1"), Side("jobs", False, "k2")
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}}]}


def sse(*data: str) -> httpx.Response:
    return httpx.Response(200, text="".join(f"data: {one}\n\n" for one in data), headers={"x-tollway-call": "call_1"})


async def replayed(handler: Handler, *sides: Side, at_once: int = 1, turns: int = 3) -> Replay:
    async with httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://gateway") as client:
        replay = Replay(client=client, demo="d1", max_tokens=16, tell=lambda *_: None)
        sessions = [Session.model_validate(session(name, turns)) for name in ("s", "t")]
        await replay.run(sessions, sides, at_once)
    return replay


async def test_calls_are_named_by_run_and_tagged_by_demo() -> None:
    """A run is one session of one team, so that `tollway report --by run` shows each."""
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.headers["x-tollway-run"], request.headers["x-tollway-tags"], request.headers["authorization"]))
        assert json.loads(request.content)["model"] == MODEL
        return sse('{"choices":[]}', "[DONE]") if json.loads(request.content)["stream"] else httpx.Response(200, json=ANSWER)

    await replayed(handler, STREAMING, WHOLE, turns=1)
    assert seen == [
        (f"d1-{team}-{name}", "demo=d1", f"Bearer {key}") for name in "st" for team, key in (("people", "k1"), ("jobs", "k2"))
    ]


@pytest.mark.parametrize(
    ("side", "answer", "code"),
    [
        pytest.param(STREAMING, sse('{"choices":[]}', "[DONE]"), None, id="a stream to its end"),
        pytest.param(STREAMING, sse('{"choices":[]}'), "stream_cut", id="a stream without its end"),
        pytest.param(
            STREAMING, sse('{"choices":[]}', '{"error":{"message":"gone","code":"upstream_cut"}}', "[DONE]"), "upstream_cut",
            id="an error in the stream",
        ),
        pytest.param(WHOLE, httpx.Response(200, json=ANSWER), None, id="a whole answer"),
        pytest.param(WHOLE, httpx.Response(200, json={}), "no_answer", id="an answer that is none"),
        pytest.param(WHOLE, httpx.Response(400, json={"error": {"code": "bad", "message": "m"}}), "bad", id="an error with a code"),
        pytest.param(WHOLE, httpx.Response(402, json={"error": {"type": "kind"}}), "kind", id="an error with a type"),
        pytest.param(WHOLE, httpx.Response(502, text="<html>"), "http_502", id="an error of somebody else"),
    ],
)  # fmt: skip
async def test_how_a_turn_ended_is_told_by_its_code(side: Side, answer: httpx.Response, code: str | None) -> None:
    replay = await replayed(lambda request: answer, side, turns=1)
    assert [turn.code for turn in replay.turns] == [code, code]


async def test_a_session_ends_at_its_first_error_and_the_next_begins() -> None:
    """An agent whose turn failed has nothing to send next."""

    def handler(request: httpx.Request) -> httpx.Response:
        if len(json.loads(request.content)["messages"]) == 4 and request.headers["x-tollway-run"].endswith("-s"):
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json=ANSWER)

    replay = await replayed(handler, WHOLE)
    assert [(turn.session, turn.number, turn.code) for turn in replay.turns] == [
        ("s", 1, None), ("s", 2, "connection_failed"), ("t", 1, None), ("t", 2, None), ("t", 3, None),
    ]  # fmt: skip


@pytest.mark.parametrize("at_once", [1, 2])
async def test_when_it_is_told_to_stop_no_further_turn_begins(at_once: int) -> None:
    """A session that was stopped has not ended, and is not told as such."""
    told: list[Turn | None] = []

    async def handler(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.01)
        return httpx.Response(200, json=ANSWER)

    async with httpx.AsyncClient(transport=httpx.MockTransport(handler), base_url="http://gateway") as client:
        replay = Replay(client=client, demo="d", max_tokens=16, tell=lambda *_: None)

        def tell(side: Side, session: Session, turn: Turn | None) -> None:
            told.append(turn)
            replay.stopping = True

        replay.tell = tell
        await replay.run([Session.model_validate(session("s", 3))], [WHOLE, WHOLE], at_once)
    assert len(told) == at_once
    assert None not in told
