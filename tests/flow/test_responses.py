"""OpenAI's responses API through the gateway: relayed where the backend speaks it, translated where it does not."""
from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.ledger.registers import KEPT
from tests.build import PLAIN, Gateway, Process, backend, chat_answer, chat_body, chat_stream, messages_answer, messages_stream
from tests.upstream import Site, Upstream, stream, until, whole

WIRE = Path(__file__).parents[1] / "wire" / "openai_responses"
PATH = "/v1/responses"
USAGE = {"input_tokens": 900, "input_tokens_details": {"cached_tokens": 640}, "output_tokens": 50, "total_tokens": 950}


@pytest.fixture(scope="module")
def served(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, dict[str, Site]]]:
    """Backends that speak responses (two of them the same model), chat alone, and messages."""
    sites = {name: upstream.site(name) for name in ("both", "twin", "chatty", "claude")}
    speaks = ["chat", "responses", "embeddings"]
    backends = {
        "both": backend(sites["both"], speaks=speaks, models=["m-both", "m-pair"]), "twin": backend(sites["twin"], speaks=speaks, models=["m-twin", "m-pair"]),
        "chatty": backend(sites["chatty"]), "claude": backend(sites["claude"], "anthropic"),
    }
    with Gateway(tmp_path_factory.mktemp("responses"), {"backends": backends}, {"plain": PLAIN, "other": PLAIN}) as gateway:
        yield gateway, sites


def response(**fields: Any) -> dict[str, Any]:
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "Paris", "annotations": []}]}
    return {"id": "resp_1", "object": "response", "status": "completed", "model": "m-served", "output": [message], "usage": USAGE, **fields}


def body(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "input": "Capital of France?", **fields}


@pytest.mark.parametrize("recorded", ["text.sse", "tools.sse"])
def test_a_stream_travels_byte_for_byte(served: tuple[Gateway, dict[str, Site]], recorded: str) -> None:
    """All its events, and the last one is the end: nothing is missed that this API does not have."""
    gateway, sites = served
    raw = (WIRE / recorded).read_bytes()
    sites["both"].says(stream(*[raw[i:i + 50] for i in range(0, len(raw), 50)]))
    answer = gateway.chat(body("m-both", stream=True), path=PATH)
    assert answer.content == raw
    assert sites["both"].requests[-1].path.endswith("/v1/responses")
    (attempt,) = gateway.call(answer.headers["x-tollway-call"])["attempts"]
    assert (attempt["tokens_from"], attempt["served_tier"]) == ("provider", "default")


def test_a_whole_answer_is_metered(served: tuple[Gateway, dict[str, Site]]) -> None:
    """And both bodies are the bytes that were sent."""
    gateway, sites = served
    sites["both"].says(whole(response()))
    sent = json.dumps(body("m-both", tomorrow={"z": 1.50})).encode()
    answer = gateway.chat(sent, path=PATH)
    assert answer.json() == response()
    assert sites["both"].requests[-1].body == sent
    (attempt,) = gateway.call(answer.headers["x-tollway-call"])["attempts"]
    assert (attempt["tokens"]["uncached"], attempt["tokens"]["cache_read"], attempt["cost_usd"]) == (260, 640, "0.001340000")


@pytest.mark.parametrize("kind", ["chatty", "claude"])
@pytest.mark.parametrize("streamed", [False, True])
def test_the_official_client_talks_to_backends_that_do_not_know_this_api(served: tuple[Gateway, dict[str, Site]], kind: str, streamed: bool) -> None:
    """Text, id, status and usage arrive in its own types."""
    gateway, sites = served
    if kind == "chatty":
        sites[kind].says(stream(*chat_stream()) if streamed else whole(chat_answer()))
    else:
        sites[kind].says(stream(*messages_stream()) if streamed else whole(messages_answer()))
    with httpx.Client(verify=False, trust_env=False) as http:
        client = openai.OpenAI(api_key=gateway.key(), base_url=gateway.url + "/v1", http_client=http, max_retries=0)
        if streamed:
            with client.responses.stream(model=sites[kind].model, input="hi") as events:
                found = events.get_final_response()
        else:
            found = client.responses.create(model=sites[kind].model, input="hi")
    assert found.output_text == "Hello there."
    assert found.status == "completed"
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.input_tokens_details.cached_tokens, found.usage.output_tokens) == (100, 60, 5)


def test_chat_is_translated_for_a_backend_that_only_speaks_responses(upstream: Upstream, tmp_path: Path) -> None:
    """Both chat and messages clients can use it; nothing is stored there on their behalf."""
    site = upstream.site("only")
    with Gateway(tmp_path, {"backends": {"only": backend(site, speaks=["responses"])}}, {"plain": PLAIN}) as gateway:
        site.says(whole(response()))
        answer = gateway.chat(chat_body("m-only"))
        assert answer.json()["choices"][0]["message"]["content"] == "Paris"
        assert (site.requests[-1].json["store"], site.requests[-1].json["input"][0]["content"]) == (False, "Say hello.")
        site.says(stream((WIRE / "tools.sse").read_bytes()))
        answer = gateway.chat({**chat_body("m-only", stream=True), "max_tokens": 9}, path="/v1/messages")
        assert answer.content.count(b'"type":"tool_use"') == 2
        assert answer.content.endswith(b'data: {"type":"message_stop"}\n\n')


def test_a_call_that_goes_on_from_an_answer_goes_where_that_was_made(served: tuple[Gateway, dict[str, Site]]) -> None:
    """Whichever of two backends made it; another team does not get near it."""
    gateway, sites = served
    for maker, other in (("twin", "both"), ("both", "twin")):
        name = f"resp_by_{maker}"
        sites[maker].says(whole(response(id=name)))
        assert gateway.chat(body(f"m-{maker}"), path=PATH).json()["id"] == name
        sites[other].says(whole(response(id="resp_wrong")))
        count = len(sites[other].requests)
        for _ in range(3):
            assert gateway.chat(body("m-pair", previous_response_id=name), path=PATH).json()["id"] == name
        assert len(sites[other].requests) == count
        refused = gateway.chat(body("m-pair", previous_response_id=name), team="other", path=PATH)
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "previous_response_id")
        assert gateway.ask("GET", f"{PATH}/{name}", gateway.key("other")).status_code == 404


def test_what_only_the_maker_can_do_is_refused_elsewhere(served: tuple[Gateway, dict[str, Site]]) -> None:
    """A backend without this API has stored nothing; the error names the field."""
    gateway, sites = served
    for field in ({"previous_response_id": "resp_x"}, {"background": True}, {"tools": [{"type": "web_search"}]}):
        answer = gateway.chat(body(sites["chatty"].model, **field), path=PATH)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(next(iter(field)))


def test_a_background_answer_is_metered_when_it_is_fetched(served: tuple[Gateway, dict[str, Site]]) -> None:
    """Its cost is not known until then; fetching it again costs nothing more, and so do its other paths."""
    gateway, sites = served
    site = sites["both"]
    site.says(whole(response(id="resp_bg", status="queued", output=[], usage=None)))
    headers = gateway.chat(body("m-both", background=True), path=PATH).headers
    assert not headers.keys() & {"x-tollway-tokens", "x-tollway-cost-usd"}  # nothing is known yet
    call = headers["x-tollway-call"]
    assert gateway.call(call)["cost_usd"] is None
    for status, usage in (("in_progress", None), ("completed", USAGE), ("completed", USAGE)):
        site.says(whole(response(id="resp_bg", status=status, usage=usage)))
        answer = gateway.ask("GET", f"{PATH}/resp_bg?include[]=a&include[]=b", gateway.key())
        assert answer.json()["status"] == status
    assert site.requests[-1].method == "GET"
    assert site.requests[-1].path.endswith("/v1/responses/resp_bg?include[]=a&include[]=b")
    booked = gateway.call(call)
    assert (booked["cost_usd"], booked["status"], booked["attempts"][0]["tokens"]["output"]) == ("0.001340000", "ok", 50)
    site.says(whole({"id": "resp_bg", "deleted": True}))
    assert gateway.ask("DELETE", f"{PATH}/resp_bg", gateway.key()).json()["deleted"]
    assert gateway.ask("POST", f"{PATH}/resp_bg/cancel", gateway.key()).status_code == 200
    assert site.requests[-1].path.endswith("/v1/responses/resp_bg/cancel")


def kept(process: Process) -> dict[str, int | None]:
    """Of which answers the database knows whose they are, and how many tokens those have."""
    with contextlib.closing(sqlite3.connect(process.folder / "data" / "tollway.db")) as database:
        return dict(database.execute(f"SELECT name, tokens FROM {KEPT.name}"))


def test_stored_answers_and_their_bills_survive_a_kill(upstream: Upstream, tmp_path: Path) -> None:
    """The next process knows whose they are and which backend has them, and books a background answer when it is fetched, once."""
    site = upstream.site("kept")
    made = backend(site, speaks=["chat", "responses"])
    with Process(tmp_path, {"backends": {"kept": made}}, {"plain": PLAIN, "other": PLAIN}) as process:
        site.says(whole(response(id="resp_a")), whole(response(id="resp_b", status="queued", output=[], usage=None)))
        process.chat(body(site.model), path=PATH)
        call = process.chat(body(site.model, background=True), path=PATH).headers["x-tollway-call"]
        other = process.key("other")
        until(lambda: {"resp_a", "resp_b"} <= kept(process).keys(), "the mapping of a plain answer, which is written a little later")
        assert kept(process)["resp_a"] == 950
        process.kill()
        process.start()
        for name in ("resp_a", "resp_b"):
            assert process.ask("GET", f"{PATH}/{name}", other).status_code == 404
        refused = process.chat(body(site.model, previous_response_id="resp_a"), team="other", path=PATH)
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "previous_response_id")
        site.says(whole(response(id="resp_b")))
        for _ in range(2):
            assert process.ask("GET", f"{PATH}/resp_b", process.key()).status_code == 200
            booked = process.call(call)
            assert (booked["cost_usd"], booked["attempts"][0]["tokens"]["output"]) == ("0.001340000", 50)


def test_a_failed_answer_is_passed_on_and_metered(served: tuple[Gateway, dict[str, Site]]) -> None:
    """As a whole and in a stream: what it used is billed, and the client sees the provider's own words."""
    gateway, sites = served
    failed = response(status="failed", output=[], error={"code": "server_error", "message": "boom"})
    sites["both"].says(whole(failed))
    answer = gateway.chat(body("m-both"), path=PATH)
    assert answer.json() == failed
    assert gateway.call(answer.headers["x-tollway-call"])["cost_usd"] == "0.001340000"
    frames = (WIRE / "text.sse").read_bytes().split(b"event: response.completed")[0]
    frames += b"event: response.failed\ndata: " + json.dumps({"type": "response.failed", "sequence_number": 9, "response": failed}).encode() + b"\n\n"
    sites["both"].says(stream(frames))
    answer = gateway.chat(body("m-both", stream=True), path=PATH)
    assert answer.content == frames
    (attempt,) = gateway.call(answer.headers["x-tollway-call"])["attempts"]
    assert (attempt["status"], attempt["tokens_from"], attempt["cost_usd"]) == ("cut", "provider", "0.001340000")


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions", "/v1/realtime"])
def test_an_upgrade_is_refused_so_that_clients_fall_back(served: tuple[Gateway, dict[str, Site]], path: str) -> None:
    """Coding clients try a WebSocket first and take 426 for an answer."""
    headers = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}
    answer = served[0].ask("GET", path, headers=headers)
    assert answer.status_code == 426
    assert answer.json()["error"]["code"] == "upgrade_refused"


@pytest.mark.parametrize("streamed", [False, True])
def test_openai_is_asked_why_it_missed_where_the_policy_says_so(upstream: Upstream, tmp_path: Path, streamed: bool) -> None:
    """From the second turn on, compared with the answer before; its word stands beside ours. Who does not ask gets none, and what a
    client says in that field itself stays."""
    site = upstream.site(tmp_path.name)
    asking = {**PLAIN, "cache": {"hold_out": 0, "ask_diagnosis": True}}
    backends = {"openai": backend(site, speaks=["chat", "responses"], provider="openai", models={"m": "gpt-5.6-sol"})}
    missed = {"type": "cache_miss", "reason": "input_changed", "cache_missed_tokens": 3_000, "comparison_reusable_tokens": 2_000}
    usage = {**USAGE, "input_tokens": 3_000, "input_tokens_details": {"cached_tokens": 0}}

    def ask(gateway: Gateway, turn: int, rules: str, team: str = "asking", **fields: Any) -> tuple[dict[str, Any], str]:
        said = response(id=f"resp_{turn}", usage=usage, prompt_cache_diagnostics=missed if turn else None)
        events = [{"type": "response.output_text.delta", "delta": "Paris"}, {"type": "response.completed", "response": said}]
        site.says(stream(*[f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]) if streamed else whole(said))
        said_so_far = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "words " * 100} for n in range(2 * turn + 1)]
        answer = gateway.chat({"model": "m", "stream": streamed, "instructions": rules, "input": said_so_far, **fields}, team, PATH)
        assert answer.status_code == 200, answer.text
        return site.requests[-1].json, answer.headers["x-tollway-call"]

    with Gateway(tmp_path, {"backends": backends}, {"asking": asking, "plain": PLAIN}) as gateway:
        sent, _ = ask(gateway, 0, "Rules. " * 2_000)
        assert "comparison_response_id" not in sent.get("prompt_cache_options", {})
        sent, call = ask(gateway, 1, "Other rules. " * 2_000)
        assert sent["prompt_cache_options"]["comparison_response_id"] == "resp_0"
        until(lambda: gateway.call(call)["prefix"]["miss"], "an explanation")
        assert gateway.call(call)["prefix"]["miss"]["provider"] == {"reason": "input_changed", "tokens": 3_000, "agrees": True}
        sent, _ = ask(gateway, 2, "Other rules. " * 2_000, prompt_cache_options={"mode": "implicit"})
        assert sent["prompt_cache_options"] == {"mode": "implicit"}
        ask(gateway, 0, "Rules. " * 2_000, "plain")
        sent, _ = ask(gateway, 1, "Rules. " * 2_000, "plain")
        assert "comparison_response_id" not in sent.get("prompt_cache_options", {})
