"""Same dialect in and out: the bytes that a model server says are the bytes that a client gets."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.build import (
    DONE,
    STOP,
    Gateway,
    chat_answer,
    chat_body,
    chat_chunk,
    chat_stream,
    chat_usage,
    messages_answer,
    messages_body,
    messages_stream,
)
from tests.upstream import Gate, Site, stream, whole

DIALECTS = [
    pytest.param("openai", "/v1/chat/completions", chat_body, id="openai"),
    pytest.param("anthropic", "/v1/messages", messages_body, id="anthropic"),
]
Fresh = Callable[[str], Site]


@pytest.mark.parametrize(("dialect", "path", "body"), DIALECTS)
@pytest.mark.parametrize("spelling", [
    pytest.param(lambda answer: answer, id="compact"),
    pytest.param(lambda answer: answer.replace(b":", b" :\n  ").replace(b"e", b"\\u0065", 1), id="odd spelling"),
    pytest.param(lambda answer: answer[:-1] + b',"surprise":{"b":1,"a":[1.10,1e2,-0.0]}}\n', id="unknown fields, odd numbers"),
])  # fmt: skip
def test_a_whole_answer_travels_byte_for_byte(
    gateway: Gateway, fresh: Fresh, dialect: str, path: str, body: Any, spelling: Any
) -> None:
    """Nothing is decoded and written anew on the way back."""
    site = fresh(dialect)
    reply = whole(chat_answer() if dialect == "openai" else messages_answer())
    reply = whole(reply.body if spelling is None else spelling(reply.body))
    site.says(reply)
    answer = gateway.chat(body(site.model), path=path)
    assert answer.status_code == 200
    assert answer.content == reply.body
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("dialect", "path", "body"), DIALECTS)
def test_a_stream_travels_byte_for_byte(gateway: Gateway, fresh: Fresh, dialect: str, path: str, body: Any) -> None:
    """Also where the network cuts it anywhere, and with line ends and fields that are rare."""
    site = fresh(dialect)
    parts = chat_stream("Hello", " th\u00e9re", " \U0001f600") if dialect == "openai" else messages_stream("Hello", " th\u00e9re")
    text = b"".join(parts)
    cut = [text[i : i + 7] for i in range(0, len(text), 7)]
    site.says(stream(*cut))
    wants = {"stream_options": {"include_usage": True}} if dialect == "openai" else {}
    answer = gateway.chat(body(site.model, stream=True, **wants), path=path)
    assert answer.content == text
    assert answer.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(("dialect", "path", "body"), DIALECTS)
@pytest.mark.parametrize("spelling", [b"%s", b" \n%s \n", b"%s\r\n"])
def test_a_request_travels_byte_for_byte(
    gateway: Gateway, fresh: Fresh, dialect: str, path: str, body: Any, spelling: bytes
) -> None:
    """Where nothing has to change, not even white space does; unknown fields travel."""
    site = fresh(dialect)
    site.says(whole(chat_answer() if dialect == "openai" else messages_answer()))
    text = httpx.Request("POST", "http://x", json=body(site.model, tomorrow={"z": [1, 2.50], "a": None})).content
    sent = spelling % text.replace(b'"user"', b'"us\\u0065r"')
    assert gateway.chat(sent, path=path).status_code == 200
    assert site.requests[0].body == sent


@pytest.mark.parametrize(("dialect", "path", "body"), DIALECTS)
def test_a_streams_first_chunk_arrives_before_its_second_is_sent(
    gateway: Gateway, fresh: Fresh, dialect: str, path: str, body: Any
) -> None:
    """Streaming is streaming: nothing is gathered up."""
    site, gate = fresh(dialect), Gate()
    parts = chat_stream() if dialect == "openai" else messages_stream()
    site.says(stream(*parts[:2], gate, *parts[2:]))
    headers = {"authorization": f"Bearer {gateway.key()}"}
    with (
        gateway.http.stream("POST", gateway.url + path, json=body(site.model, stream=True), headers=headers) as answer
    ):
        chunks = answer.iter_raw()
        first = b""
        while parts[1] not in first:  # parts[2] is behind the gate
            first += next(chunks)
        assert site.requests[0].steps_sent <= 2
        gate.open()
        rest = b"".join(chunks)
    assert (DONE if dialect == "openai" else STOP) in rest


def test_usage_that_nobody_asked_for_is_asked_for_and_hidden(gateway: Gateway, openai: Site) -> None:
    """The client's stream has no usage chunk; the ledger has the figures."""
    openai.says(stream(*chat_stream()))
    answer = gateway.chat(chat_body(openai.model, stream=True))
    assert openai.requests[0].json["stream_options"] == {"include_usage": True}
    assert answer.content == b"".join(chat_stream(usage=False))
    (attempt,) = gateway.call(answer.headers["x-tollway-call"])["attempts"]
    assert (attempt["tokens_from"], attempt["tokens"]["output"]) == ("provider", 5)


def test_usage_on_a_chunk_with_text_stays_with_its_text(gateway: Gateway, openai: Site) -> None:
    """Hiding usage never loses a token of the answer."""
    usage = chat_answer()["usage"]
    openai.says(stream(chat_chunk({"content": "one"}), chat_chunk({"content": " two"}, "stop", usage=usage), DONE))
    answer = gateway.chat(chat_body(openai.model, stream=True))
    assert b" two" in answer.content
    assert gateway.call(answer.headers["x-tollway-call"])["attempts"][0]["tokens"]["output"] == 5


def test_usage_that_was_asked_for_stays(gateway: Gateway, openai: Site) -> None:
    """A client that wants the usage chunk gets it, and the body is not touched."""
    openai.says(stream(*chat_stream()))
    answer = gateway.chat(chat_body(openai.model, stream=True, stream_options={"include_usage": True}))
    assert chat_usage() in answer.content


def test_headers_travel_by_the_rules(gateway: Gateway, openai: Site) -> None:
    """The caller's credentials and addresses stop here, the backend's cookies too; what the vendors' clients need passes."""
    openai.says(whole(chat_answer(), x_request_id="req-1", openai_processing_ms="12", set_cookie="a=b", x_ratelimit_remaining_requests="7",
                      server="nginx", x_internal="secret"))  # fmt: skip
    answer = gateway.chat(chat_body(openai.model), headers={
        "cookie": "session=1", "x-forwarded-for": "10.0.0.1", "x-real-ip": "10.0.0.1", "x-tollway-run": "r1", "openai-beta": "x=1",
        "x-stainless-lang": "python", "connection": "keep-alive, x-hop", "x-hop": "1", "forwarded": "for=10.0.0.1",
    })  # fmt: skip
    got = openai.requests[0].headers
    assert got["authorization"] == "Bearer sk-provider-canary-0123456789"
    assert (got["openai-beta"], got["x-stainless-lang"], got["accept-encoding"]) == ("x=1", "python", "identity")
    assert not got.keys() & {"cookie", "x-forwarded-for", "x-real-ip", "x-tollway-run", "x-hop", "forwarded"}
    assert got["host"] == f"127.0.0.1:{openai.url.split(':')[2].split('/')[0]}"
    assert (answer.headers["x-request-id"], answer.headers["x-ratelimit-remaining-requests"]) == ("req-1", "7")
    assert not answer.headers.keys() & {"set-cookie", "server", "x-internal"}


def test_the_anthropic_version_and_beta_travel(gateway: Gateway, anthropic: Site) -> None:
    """The client's own words to its provider pass; without a version the gateway says one."""
    anthropic.says(whole(messages_answer()))
    gateway.chat(messages_body(anthropic.model), path="/v1/messages", headers={"anthropic-version": "2099-01-01", "anthropic-beta": "b1"})
    gateway.chat(messages_body(anthropic.model), path="/v1/messages")
    first, second = (request.headers for request in anthropic.requests)
    assert (first["anthropic-version"], first["anthropic-beta"]) == ("2099-01-01", "b1")
    assert second["anthropic-version"] == "2023-06-01"
    assert first["x-api-key"] == "sk-provider-canary-0123456789"
    assert "authorization" not in first


def test_answers_say_what_was_decided_and_what_it_cost(gateway: Gateway, openai: Site) -> None:
    """40 uncached at 2, 60 cached at 0.5 and 5 output at 10 dollars a million; a stream's headers leave before the sum."""
    openai.says(whole(chat_answer()))
    answer = gateway.chat(chat_body(openai.model), headers={"x-tollway-class": "interactive"}).headers
    assert (answer["x-tollway-backend"], answer["x-tollway-lane"], answer["x-tollway-class"]) == (openai.name, "standard", "interactive")
    assert answer["x-tollway-tokens"] == "uncached=40,cached=60,written=0,output=5"
    assert answer["x-tollway-cost-usd"] == "0.000160000"
    assert "interactive" in answer["x-tollway-reason"]
    openai.says(whole(chat_answer(usage={"prompt_tokens": 7, "completion_tokens": 5})))
    assert gateway.chat(chat_body(openai.model)).headers["x-tollway-tokens"] == "uncached=7,cached=0,written=0,output=5"
    openai.says(stream(*chat_stream()))
    streamed = gateway.chat(chat_body(openai.model, stream=True)).headers
    assert "x-tollway-call" in streamed
    assert not streamed.keys() & {"x-tollway-cost-usd", "x-tollway-tokens"}


def test_a_call_is_looked_up_in_the_shape_of_the_contract(gateway: Gateway, openai: Site) -> None:
    """`GET /tollway/calls/{id}` has the fields of the design, and no more than its two further lists."""
    openai.says(whole(chat_answer()))
    answer = gateway.chat(chat_body(openai.model), headers={"x-tollway-run": "run-7"})
    found = gateway.ask("GET", f"/tollway/calls/{answer.headers['x-tollway-call']}", gateway.key()).json()
    (attempt,) = found.pop("attempts")
    assert attempt.pop("first_token_ms") > 0
    assert attempt.pop("total_ms") > 0
    assert attempt == {
        "backend": openai.name, "upstream_model": openai.model, "lane": "standard", "served_tier": None, "status": "ok",
        "http_status": 200, "tokens_from": "provider", "cost_usd": "0.000160000", "price_rows": ["prices:test/m-*@launch"],
        "tokens": {"uncached": 40, "cache_read": 60, "cache_write": {"5m": 0, "1h": 0}, "output": 5, "reasoning": None, "other": {}},
    }  # fmt: skip
    assert found.pop("policy_version").startswith("sha256:")
    assert found.pop("reason")
    assert found.pop("prefix") == {"predicted_read": 0, "miss": None}
    assert {type(found.pop("decision")), type(found.pop("receipts"))} == {list}
    assert found == {
        "id": answer.headers["x-tollway-call"], "team": "plain", "run": "run-7", "model": openai.model, "class": "standard",
        "lane": "standard", "status": "ok", "cost_usd": "0.000160000",
    }  # fmt: skip


def test_another_teams_call_is_not_found(gateway: Gateway, openai: Site) -> None:
    """404, whether it exists or not."""
    openai.says(whole(chat_answer()))
    call_id = gateway.chat(chat_body(openai.model)).headers["x-tollway-call"]
    answers = [gateway.ask("GET", f"/tollway/calls/{one}", gateway.key("other")) for one in (call_id, "call_none")]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].text.replace(call_id, "") == answers[1].text.replace("call_none", "")


@pytest.mark.parametrize(("dialect", "path", "body"), DIALECTS)
def test_a_packed_answer_is_unpacked_and_metered(gateway: Gateway, fresh: Fresh, dialect: str, path: str, body: Any) -> None:
    """Identity was asked for; a backend that packs all the same is read, and the answer's headers fit its body."""
    import tests.upstream

    site = fresh(dialect)
    document = chat_answer() if dialect == "openai" else messages_answer()
    site.says(tests.upstream.packed(document))
    answer = gateway.chat(body(site.model), path=path)
    assert answer.json() == document
    assert "content-encoding" not in answer.headers
    assert gateway.call(answer.headers["x-tollway-call"])["attempts"][0]["tokens_from"] == "provider"


def test_speakers_are_named_where_there_is_a_word_for_it(gateway: Gateway, openai: Site, anthropic: Site) -> None:
    """Elsewhere the call is served without, and told so in the answer and in its receipt."""
    anthropic.says(whole(messages_answer()))
    openai.says(whole(chat_answer()))
    messages = [{"role": "user", "name": "bo", "content": "Who am I?"}]
    translated = gateway.chat(chat_body(anthropic.model, messages=messages))
    assert (translated.status_code, translated.headers.get("x-tollway-dropped")) == (200, "messages[].name")
    assert b'"bo"' not in anthropic.requests[-1].body
    receipts = gateway.call(translated.headers["x-tollway-call"])["receipts"]
    assert "messages[].name" in [receipt.get("place") for receipt in receipts]
    direct = gateway.chat(chat_body(openai.model, messages=messages))
    assert (direct.headers.get("x-tollway-dropped"), openai.requests[-1].json["messages"]) == (None, messages)


@pytest.mark.parametrize("body", [{"seed": 42}, {}])
def test_a_seed_goes_where_there_is_a_word_for_it(gateway: Gateway, openai: Site, anthropic: Site, body: dict[str, Any]) -> None:
    """It promises no answer, so that a call is served without one, and told so; among backends of its dialect it travels."""
    anthropic.says(whole(messages_answer()))
    openai.says(whole(chat_answer()))
    translated = gateway.chat(chat_body(anthropic.model, **body))
    assert (translated.status_code, translated.headers.get("x-tollway-dropped")) == (200, "seed" if body else None)
    assert "seed" not in anthropic.requests[-1].json
    direct = gateway.chat(chat_body(openai.model, **body))
    assert (direct.status_code, direct.headers.get("x-tollway-dropped")) == (200, None)
    assert openai.requests[-1].json.get("seed") == body.get("seed")


def test_a_conversation_that_thought_elsewhere_goes_on_at_anthropic(gateway: Gateway, openai: Site, anthropic: Site) -> None:
    """The reasoning of another provider's model is shown as thinking, which Anthropic would refuse: it has no signature."""
    message = {"role": "assistant", "reasoning_content": "Let me see.", "content": "Hello there."}
    openai.says(whole(chat_answer(choices=[{"index": 0, "message": message, "finish_reason": "stop"}])))
    anthropic.says(whole(messages_answer()))
    first = gateway.chat(messages_body(openai.model), path="/v1/messages").json()
    assert [block["type"] for block in first["content"]] == ["thinking", "text"]
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "go on"}]
    assert gateway.chat(messages_body(anthropic.model, messages=turns), path="/v1/messages").status_code == 200
    sent = anthropic.requests[0].json["messages"][1]["content"]
    assert [block["type"] for block in sent] == ["text"]
