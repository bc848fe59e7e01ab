"""`Idempotency-Key`: asked for twice, made once; within the team, for a day, also after a restart and while the database is away."""
from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.idempotency import KEPT_BYTES
from tests.build import PLAIN, Gateway, Process, backend, chat_answer, chat_body, chat_stream
from tests.upstream import PATIENCE_S, RESET, Gate, Site, Upstream, stream, until, whole


@pytest.fixture
def site(upstream: Upstream, request: pytest.FixtureRequest) -> Site:
    return upstream.site("idem")


@pytest.fixture(scope="module")
def gate(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    site = upstream.site("idem")
    config = {"backends": {"b": backend(site, models=["m-idem"])}}
    with Gateway(tmp_path_factory.mktemp("idem"), config, {"plain": PLAIN, "other": PLAIN}) as gateway:
        yield gateway


def send(gate: Any, key: str, team: str = "plain", text: str = "hi", **fields: Any) -> httpx.Response:
    answer: httpx.Response = gate.chat(chat_body("m-idem", text, **fields), team=team, headers={"idempotency-key": key})
    return answer


def code(answer: httpx.Response) -> tuple[int, str, str]:
    return answer.status_code, answer.json()["error"]["code"], answer.headers["x-should-retry"]


def test_the_same_request_is_answered_from_memory(gate: Gateway, site: Site) -> None:
    """Byte for byte, with the first call's id, one call upstream and one entry."""
    site.says(whole(chat_answer("one")), whole(chat_answer("two")))
    first, again = send(gate, "same"), send(gate, "same")
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["x-tollway-call"] == first.headers["x-tollway-call"]
    assert len(site.requests) == 1
    assert len(gate.call(first.headers["x-tollway-call"])["attempts"]) == 1
    assert send(gate, "another").json()["choices"][0]["message"]["content"] == "two"


def test_streams_are_replayed_as_they_came(gate: Gateway, site: Site) -> None:
    site.says(stream(*chat_stream()))
    body = {"stream": True, "stream_options": {"include_usage": True}}
    first, again = send(gate, "stream", **body), send(gate, "stream", **body)
    assert again.content == first.content == b"".join(chat_stream())
    assert again.headers["content-type"].startswith("text/event-stream")
    assert len(site.requests) == 1


def test_another_request_under_the_key_is_told(gate: Gateway, site: Site) -> None:
    """422, which no SDK tries again."""
    site.says(whole(chat_answer()))
    send(gate, "mismatch")
    assert code(send(gate, "mismatch", text="ho")) == (422, "idempotency_mismatch", "false")
    assert code(send(gate, "mismatch", max_tokens=17)) == (422, "idempotency_mismatch", "false")
    assert len(site.requests) == 1


def test_teams_do_not_meet(gate: Gateway, site: Site) -> None:
    """The same key of another team is another key."""
    site.says(whole(chat_answer("ours")), whole(chat_answer("theirs")))
    assert send(gate, "shared").json() != send(gate, "shared", team="other").json()


def test_while_it_runs_the_second_is_told_to_wait(gate: Gateway, site: Site) -> None:
    """409, which an SDK tries again; then it gets the answer."""
    gate_ = Gate()
    site.says(whole(chat_answer(), before=(gate_,)))
    got: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: got.append(send(gate, "slow")))
    thread.start()
    site.wait_for(1)
    assert code(send(gate, "slow")) == (409, "idempotency_in_progress", "true")
    gate_.open()
    thread.join(PATIENCE_S)
    assert send(gate, "slow").content == got[0].content
    assert len(site.requests) == 1


def test_a_large_answer_is_not_kept(gate: Gateway, site: Site) -> None:
    """422 with the call's id, where it can be looked up."""
    site.says(whole(chat_answer("x" * (KEPT_BYTES + 1))))
    first = send(gate, "large")
    again = send(gate, "large")
    assert code(again) == (422, "already_done", "false")
    assert first.headers["x-tollway-call"] in again.text
    assert len(site.requests) == 1


@pytest.mark.parametrize("fault", [
    pytest.param(whole({"error": {"message": "no", "type": "x"}}, 400), id="refused by the backend"),
    pytest.param(RESET, id="no backend"),
    pytest.param(stream(*chat_stream()[:2]), id="cut in the middle"),
])  # fmt: skip
def test_what_was_not_answered_may_be_tried_again(gate: Gateway, site: Site, fault: Any, request: pytest.FixtureRequest) -> None:
    """Nothing is remembered of a call that came to nothing."""
    key = request.node.name
    streams = "cut" in key
    site.says(fault, stream(*chat_stream()) if streams else whole(chat_answer()))
    send(gate, key, stream=streams)
    until(lambda: send(gate, key, stream=streams).status_code == 200, "the lane")
    assert len(site.requests) >= 2


def test_nothing_is_remembered_of_a_wrong_request(gate: Gateway, site: Site) -> None:
    """A body that fails validation, a model that there is not: the key is free afterwards."""
    site.says(whole(chat_answer()))
    assert gate.chat(b"{no", headers={"idempotency-key": "wrong"}).status_code == 400
    assert gate.chat(chat_body("m-nowhere"), headers={"idempotency-key": "wrong"}).status_code == 404
    assert send(gate, "wrong").status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "caf\u00e9"])
def test_odd_keys_are_refused(gate: Gateway, key: str) -> None:
    assert gate.chat(chat_body("m-idem"), headers={"idempotency-key": key.encode()}).status_code == 400


def test_it_survives_a_restart(tmp_path: Path, upstream: Upstream) -> None:
    """kill -9 too; the answer is there for the next process."""
    site = upstream.site("idem2")
    site.says(whole(chat_answer("one")), whole(chat_answer("two")))
    with Process(tmp_path, {"backends": {"b": backend(site, models=["m-idem"])}}, {"plain": PLAIN}) as process:
        first = send(process, "k")
        process.kill()
        process.start()
        assert send(process, "k").content == first.content
    assert len(site.requests) == 1
