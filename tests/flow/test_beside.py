"""What stands beside the dialects: embeddings, token counts, files and batches, configured paths."""
from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.build import PLAIN, Gateway, backend, messages_body
from tests.upstream import End, Reply, Site, Upstream, raw, stream, whole

COUNT = "/v1/messages/count_tokens"
PRICES = """
[test]
source = "made up"
checked_on = 2026-01-01
rows = [
  {model = "m-*", input = "2", cached = "0.5", write_5m = "2.5", write_1h = "4", output = "10"},
  {model = "gemini-*", input = "2", cached = "0.5", output = "10"},
  {model = "m-emb", input = "2"},
  {model = "m-batched", tier = "batch", input = "1", cached = "0.25", output = "5"},
]
"""
GEMINI = {"candidates": [], "modelVersion": "gemini-9", "usageMetadata": {"promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 105}}


@pytest.fixture(scope="module")
def beside(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, dict[str, Site]]]:
    sites = {name: upstream.site(name) for name in ("emb", "files", "claude2", "plainchat", "google", "answers")}
    backends = {
        "emb": backend(sites["emb"], speaks=["embeddings"]), "files": backend(sites["files"], speaks=["chat", "files", "batches"]),
        "claude2": backend(sites["claude2"], "anthropic", fields=[]), "plainchat": backend(sites["plainchat"]),
        "answers": backend(sites["answers"], speaks=["responses"]),
        "google": backend(sites["google"], "other", models=[], key_header="x-goog-api-key"),
    }
    policies = {"plain": PLAIN, "other": PLAIN, "narrow": {**PLAIN, "backends": {"allow": ["emb"]}}, "nogemini": {**PLAIN, "models": {"deny": ["gemini-*"]}},
                "mute": {**PLAIN, "client_may": {"tags": False}}, "poor": {**PLAIN, "budgets": [{"name": "cap", "limit_usd": 5}]}}
    config = {"backends": backends, "passthrough": {"/gemini": "google"}}
    with Gateway(tmp_path_factory.mktemp("beside"), config, policies, PRICES) as gateway:
        yield gateway, sites


def attempt(gateway: Gateway, answer: Any) -> dict[str, Any]:
    (found,) = gateway.call(answer.headers["x-tollway-call"])["attempts"]
    return found    # type: ignore[no-any-return]


# embeddings


@pytest.mark.parametrize("vector", ["AAECAwQF", [0.25, -1.5e-05, 3]])
def test_embeddings_pass_as_they_came(beside: tuple[Gateway, dict[str, Site]], vector: Any) -> None:
    """Base64 or numbers: no encoding is forced on the backend, and there is no output to pay for."""
    gateway, sites = beside
    reply = whole({"object": "list", "model": "m-emb", "data": [{"object": "embedding", "index": 0, "embedding": vector}], "usage": {"prompt_tokens": 8, "total_tokens": 8}})
    sites["emb"].says(reply)
    sent = json.dumps({"model": "m-emb", "input": ["a", "b"]}, indent=1).encode()
    answer = gateway.chat(sent, path="/v1/embeddings")
    assert answer.content == reply.body
    assert sites["emb"].requests[-1].body == sent
    found = attempt(gateway, answer)
    assert (found["tokens"]["uncached"], found["tokens"]["output"], found["cost_usd"], found["tokens_from"]) == (8, 0, "0.000016000", "provider")


def test_a_model_without_embeddings_says_so(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """Embeddings are never translated, nor is chat for a backend that only has embeddings."""
    gateway, sites = beside
    for path, site, fields in (("/v1/embeddings", "claude2", {"input": "x"}), ("/v1/chat/completions", "emb", {"messages": []})):
        answer = gateway.chat({"model": sites[site].model, **fields}, path=path)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
        assert path in answer.json()["error"]["message"]
    assert gateway.chat({"model": "m-emb"}, path="/v1/embeddings").json()["error"]["param"] == "input"


def test_an_error_of_embeddings_is_passed_on(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """In its own words; what is no answer at all is the backend's fault."""
    gateway, sites = beside
    sites["emb"].says(whole({"error": {"message": "too long"}}, 400))
    assert gateway.chat({"model": "m-emb", "input": "x"}, path="/v1/embeddings").json()["error"]["message"] == "too long"
    for broken in (b"[]", b'{"error":{"message":"boom"}}'):
        sites["emb"].says(whole(broken))
        assert gateway.chat({"model": "m-emb", "input": "x"}, path="/v1/embeddings").status_code == 502


# token counts


def test_a_backend_that_can_count_is_asked(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """Its answer passes as it came, and nothing is booked. An engine of one's own gets known fields only, here too."""
    gateway, sites = beside
    sites["claude2"].says(whole(b'{ "input_tokens": 14 }'))
    answer = gateway.chat(messages_body("m-claude2", mcp_servers=[{"url": "http://10.0.0.1"}]), path=COUNT)
    assert json.loads(sites["claude2"].requests[-1].body) == messages_body("m-claude2")
    assert (answer.content, "x-tollway-estimate" in answer.headers) == (b'{ "input_tokens": 14 }', False)
    assert sites["claude2"].requests[-1].path.endswith("/v1/messages/count_tokens")
    assert "x-tollway-call" not in answer.headers
    sites["claude2"].says(whole({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, 400))
    assert gateway.chat(messages_body("m-claude2"), path=COUNT).status_code == 400


def test_what_is_counted_is_what_would_be_sent(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """Thinking that nobody signed, which the provider refuses, goes there no more than with a call."""
    gateway, sites = beside
    sites["claude2"].says(whole(b'{"input_tokens":14}'))
    text = {"type": "text", "text": "a"}
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, text]}, {"role": "user", "content": "go on"}]
    assert gateway.chat(messages_body("m-claude2", messages=turns), path=COUNT).status_code == 200
    assert sites["claude2"].requests[-1].json["messages"][1]["content"] == [text]


@pytest.mark.parametrize("site", ["plainchat", "claude2"])
def test_else_it_is_estimated_and_marked(beside: tuple[Gateway, dict[str, Site]], site: str) -> None:
    """For backends of another dialect, and where the backend that could count does not answer."""
    gateway, sites = beside
    sites[site].says(whole({"error": {"message": "nothing here"}}, 404))
    answer = gateway.chat({"model": sites[site].model, "messages": [{"role": "user", "content": "Hello there, world."}]}, path=COUNT)
    assert answer.headers["x-tollway-estimate"] == "true"
    text = answer.json()["input_tokens"]
    assert 4 <= text <= 12
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgoA" * 9_000}}
    seen = {"role": "user", "content": [{"type": "text", "text": "Hello there, world."}, image]}
    answer = gateway.chat({"model": sites[site].model, "messages": [seen]}, path=COUNT)
    assert 1_000 <= answer.json()["input_tokens"] - text <= 2_000
    assert gateway.chat({"model": "nope", "messages": []}, path=COUNT).json()["type"] == "error"


@pytest.mark.parametrize("reply", [
    whole({"error": {"message": "no"}}, 500), whole({"error": {"message": "no"}}, 408), whole({}), whole(b"<html>"), whole({"input_tokens": "many"}),
], ids=["500", "408", "an empty object", "no JSON", "no number"])  # fmt: skip
def test_a_backend_that_cannot_count_is_not_the_clients_trouble(beside: tuple[Gateway, dict[str, Site]], reply: Reply) -> None:
    """Whatever it fails with, the client gets the estimate."""
    gateway, sites = beside
    sites["claude2"].says(reply)
    answer = gateway.chat(messages_body("m-claude2"), path=COUNT)
    assert (answer.status_code, answer.headers["x-tollway-estimate"]) == (200, "true")
    assert answer.json()["input_tokens"] > 0


# files and batches


def test_files_go_to_the_backend_that_has_them(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """Any body, any method; the key does not travel, other teams do not see what was stored, nothing is booked."""
    gateway, sites = beside
    site = sites["files"]
    site.says(whole({"id": "file-1", "object": "file"}))
    form = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'
    answer = gateway.chat(form, path="/v1/files", headers={"content-type": "multipart/form-data; boundary=x"})
    request = site.requests[-1]
    assert (answer.json()["id"], request.body, request.headers["content-type"]) == ("file-1", form, "multipart/form-data; boundary=x")
    assert request.headers["authorization"] == "Bearer sk-provider-canary-0123456789"
    packed = gzip.compress(b"{}")
    gateway.chat(packed, path="/v1/files", headers={"content-encoding": "gzip"})
    assert (site.requests[-1].body, site.requests[-1].headers["content-encoding"]) == (packed, "gzip")
    site.says(raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: 3\r\n\r\n\x00\xff\n"))
    assert gateway.ask("GET", "/v1/files/file-1/content", gateway.key()).content == b"\x00\xff\n"
    assert gateway.ask("GET", "/v1/files/file-1", gateway.key("other")).status_code == 404
    assert gateway.ask("GET", "/v1/files?limit=2", gateway.key("narrow")).status_code == 404
    site.says(whole({"id": "batch_1", "object": "batch"}))
    assert gateway.chat({"input_file_id": "file-1"}, path="/v1/batches").json()["id"] == "batch_1"
    assert gateway.ask("GET", f"/tollway/calls/{answer.headers['x-tollway-call']}").status_code == 404
    assert gateway.ask("HEAD", "/v1/files", gateway.key()).status_code == 405
    assert gateway.http.get(gateway.url + "/v1/files").status_code == 401


BATCH = {"id": "batch_2", "object": "batch", "status": "validating", "model": None, "usage": None}
USED = {"input_tokens": 3_000_000, "input_tokens_details": {"cached_tokens": 1_000_000}, "output_tokens": 100_000, "output_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 3_100_000}


def test_a_providers_batch_is_metered_when_it_is_done(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """It is booked when it is made, without a cost; what it says once it has ended is that, at the batch price, once."""
    gateway, sites = beside
    site = sites["files"]
    site.says(whole(BATCH))
    made = gateway.chat({"input_file_id": "file-1", "endpoint": "/v1/chat/completions"}, path="/v1/batches")
    call = made.headers["x-tollway-call"]
    assert (made.json(), "x-tollway-cost-usd" in made.headers, gateway.call(call)["cost_usd"]) == (BATCH, False, None)
    half = {**USED, "output_tokens": 5}
    for status, usage in (("in_progress", half), ("completed", USED), ("completed", USED)):
        site.says(whole({**BATCH, "status": status, "model": "m-batched", "usage": usage}))
        assert gateway.ask("GET", "/v1/batches/batch_2", gateway.key()).json()["status"] == status
    booked = gateway.call(call)
    tokens = booked["attempts"][0]["tokens"]
    assert (booked["cost_usd"], booked["status"]) == ("2.750000000", "ok")
    assert (tokens["uncached"], tokens["cache_read"], tokens["output"]) == (2_000_000, 1_000_000, 100_000)


@pytest.mark.parametrize(("status", "usage", "cost"), [
    ("failed", None, "0.000000000"), ("cancelled", {"input_tokens": 1_000_000, "output_tokens": 0}, "1.000000000"), ("completed", None, None)])
def test_how_a_batch_may_end(beside: tuple[Gateway, dict[str, Site]], status: str, usage: Any, cost: str | None) -> None:
    """A refused file costs nothing; a provider that tells no usage leaves the cost unknown."""
    gateway, sites = beside
    name = f"batch_{status}"
    sites["files"].says(whole({**BATCH, "id": name}))
    call = gateway.chat({"input_file_id": "file-1"}, path="/v1/batches").headers["x-tollway-call"]
    sites["files"].says(whole({**BATCH, "id": name, "status": status, "model": "m-batched", "usage": usage}))
    gateway.ask("GET", f"/v1/batches/{name}", gateway.key())
    assert gateway.call(call)["cost_usd"] == cost


@pytest.mark.parametrize("team", ["poor", "nogemini"])
def test_a_batch_that_nobody_can_look_into_is_not_for_those_with_limits(beside: tuple[Gateway, dict[str, Site]], team: str) -> None:
    """A budget could not be held, nor a model kept out."""
    gateway, sites = beside
    before = len(sites["files"].requests)
    answer = gateway.chat({"input_file_id": "file-1"}, team, "/v1/batches")
    assert answer.status_code == 403
    assert "queue:" in answer.json()["error"]["message"]
    assert len(sites["files"].requests) == before


# configured paths


def test_a_configured_path_is_passed_on_and_metered(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """Wherever Google's clients put their key, ours stays here and the provider's goes there; model and usage are recognised."""
    gateway, sites = beside
    site = sites["google"]
    site.says(whole(GEMINI))
    path = "/gemini/v1beta/models/gemini-9:generateContent"
    shown = ({"headers": {"x-goog-api-key": gateway.key()}}, {"params": {"key": gateway.key(), "alt": "json"}}, {"headers": {"authorization": f"Bearer {gateway.key()}"}})
    for where in shown:
        answer = gateway.http.post(gateway.url + path, json={"contents": []}, **where)    # type: ignore[arg-type]
        assert answer.json() == GEMINI
        request = site.requests[-1]
        assert request.headers["x-goog-api-key"] == "sk-provider-canary-0123456789"
        assert gateway.key() not in request.path + str(request.headers)
    assert request.path == "/google/v1/v1beta/models/gemini-9:generateContent"
    found = attempt(gateway, answer)
    assert (found["tokens"]["uncached"], found["tokens"]["cache_read"], found["tokens"]["output"], found["tokens"]["reasoning"]) == (40, 60, 5, 2)
    assert (found["cost_usd"], found["upstream_model"], found["backend"]) == ("0.000160000", "gemini-9", "google")


def event_frame(kind: str, document: Any) -> bytes:
    """Amazon's binary framing, without its checksums."""
    payload, name = json.dumps(document).encode(), b":event-type"
    headers = bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(kind)) + kind.encode()
    return struct.pack(">III", 16 + len(headers) + len(payload), len(headers), 0) + headers + payload + b"\0\0\0\0"


CONVERSE = {"usage": {"inputTokens": 40, "outputTokens": 5, "cacheReadInputTokens": 60}, "metrics": {}}
STREAMS = {
    "events": ("text/event-stream", b"data: " + json.dumps(GEMINI).encode() + b"\r\n\r\n"),
    "array": ("application/json", json.dumps([GEMINI, GEMINI], indent=1).encode()),
    "amazon": ("application/vnd.amazon.eventstream", event_frame("messageStop", {}) + event_frame("metadata", CONVERSE)),
    "responses": ("text/event-stream", b'data: {"type":"response.completed","response":{"id":"r","model":"m-x","usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60},"output_tokens":5}}}\n\n'),
    "messages": ("text/event-stream", b'data: {"type":"message_start","message":{"model":"m-x","usage":{"input_tokens":40,"cache_read_input_tokens":60,"output_tokens":1}}}\n\n'
                                      b'data: {"type":"message_delta","usage":{"output_tokens":5}}\n\n'),
    "chat": ("text/event-stream", b'data: {"model":"m-x","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":60}}}\n\ndata: [DONE]\n\n'),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_of_known_shapes_are_metered(beside: tuple[Gateway, dict[str, Site]], kind: str) -> None:
    """Their bytes pass as they come, in pieces of any size."""
    gateway, sites = beside
    content_type, body = STREAMS[kind]
    sites["google"].says(stream(*[body[i:i + 9] for i in range(0, len(body), 9)], content_type=content_type))
    answer = gateway.chat({"model": "m-x"}, path="/gemini/model/m-x/converse-stream")
    assert answer.content == body
    assert answer.headers["content-type"] == content_type
    found = attempt(gateway, answer)
    assert (found["tokens"]["uncached"], found["tokens"]["cache_read"], found["tokens"]["output"], found["cost_usd"]) == (40, 60, 5, "0.000160000")


def test_paths_travel_as_they_are_written(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """A model named by an address keeps its escapes; nothing leads out of the configured place."""
    gateway, sites = beside
    sites["google"].says(whole(GEMINI))
    answer = gateway.chat({}, path="/gemini/model/arn%3Aaws%2Fgemini-9/converse?a=%2F")
    assert sites["google"].requests[-1].path == "/google/v1/model/arn%3Aaws%2Fgemini-9/converse?a=%2F"
    assert attempt(gateway, answer)["upstream_model"] == "arn:aws/gemini-9"
    count = len(sites["google"].requests)
    for path in ("/gemini/%2e%2e/admin", "/gemini/a%2f..", "/v1/files/%2e%2e/admin", "/%67emini/x"):
        assert gateway.chat({}, path=path).status_code == 404
    assert len(sites["google"].requests) == count


def test_what_cannot_be_recognised_has_no_price(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """Unknown is not zero; reading costs nothing and is not booked; errors pass as they came."""
    gateway, sites = beside
    sites["google"].says(whole(b"<xml/>", content_type="text/xml"))
    answer = gateway.chat({"model": "m-x"}, path="/gemini/anything")
    assert (answer.content, attempt(gateway, answer)["cost_usd"]) == (b"<xml/>", None)
    read = gateway.ask("GET", "/gemini/v1beta/models", gateway.key())
    assert gateway.ask("GET", f"/tollway/calls/{read.headers['x-tollway-call']}").status_code == 404
    sites["google"].says(whole({"error": {"message": "bad"}}, 400))
    answer = gateway.chat({"model": "m-x"}, path="/gemini/anything")
    assert (answer.status_code, answer.json(), attempt(gateway, answer)["status"]) == (400, {"error": {"message": "bad"}}, "failed")
    sites["google"].says(whole({}, 401))
    assert gateway.chat({"model": "m-x"}, path="/gemini/anything").json()["error"]["code"] == "backend_credentials"


def test_policies_hold_there_too(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """Backends and models that a team may not use, and budgets that cannot be held without a price."""
    gateway, sites = beside
    path = "/gemini/v1beta/models/gemini-9:generateContent"
    sites["google"].says(whole(GEMINI))
    assert gateway.chat({}, team="narrow", path=path).status_code == 403
    assert gateway.chat({}, team="nogemini", path=path).status_code == 404
    assert gateway.chat({}, team="poor", path=path).status_code == 200
    assert gateway.chat({}, team="poor", path="/gemini/unknown").status_code == 403
    for team in ("plain", "mute"):
        assert gateway.chat({}, team=team, path=path, headers={"x-tollway-tags": "who=me"}).status_code == 200
    told = gateway.ask("GET", "/tollway/usage?by=team,tag:who").json()["rows"]
    assert {row["team"] for row in told if row["tag:who"] == "me"} == {"plain"}  # what clients of a team may not say does not count
    key = gateway.make_key("plain", limits={"models": ["gemini-8*"]})["key"]
    seen = len(sites["google"].requests)
    assert [gateway.ask("POST", place, key, json={}).status_code for place in (path, "/gemini/unknown")] == [403, 403]
    assert len(sites["google"].requests) == seen
    assert gateway.ask("POST", path.replace("-9", "-8"), key, json={}).status_code == 200


def test_a_stream_that_breaks_off_is_booked(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """As cut, with what it had said until then."""
    gateway, sites = beside
    sites["google"].says(stream(b"data: " + json.dumps(GEMINI).encode() + b"\n\n", End.CUT))
    headers = {"authorization": f"Bearer {gateway.key()}"}
    with gateway.http.stream("POST", gateway.url + "/gemini/anything", json={"model": "gemini-9"}, headers=headers) as answer, pytest.raises(httpx.RemoteProtocolError):
        answer.read()
    found = attempt(gateway, answer)
    assert (found["status"], found["tokens"]["output"], found["cost_usd"]) == ("cut", 5, "0.000160000")


def test_a_hang_up_stops_the_backend(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """There too; what was said until then is booked."""
    gateway, sites = beside
    start = b'data: {"type":"message_start","message":{"model":"m-x","usage":{"input_tokens":40,"output_tokens":1}}}\n\n'
    sites["google"].says(stream(start, End.HANG))
    headers = {"authorization": f"Bearer {gateway.key()}"}
    with gateway.http.stream("POST", gateway.url + "/gemini/anything", json={"model": "m-x"}, headers=headers) as answer:
        assert next(answer.iter_raw()) == start
    assert sites["google"].requests[-1].hung_up.wait(5)
    found = attempt(gateway, answer)
    assert (found["status"], found["tokens"]["uncached"], found["tokens_from"], found["cost_usd"]) == ("client_gone", 40, "mixed", None)


def test_compacting_a_conversation_costs(beside: tuple[Gateway, dict[str, Site]]) -> None:
    """It stands among the stored answers' paths, but makes something."""
    gateway, sites = beside
    sites["answers"].says(whole({"id": "cmp_1", "object": "response.compaction", "model": "m-x", "output": [], "usage": {"input_tokens": 100, "output_tokens": 5}}))
    answer = gateway.chat({"model": "m-answers", "input": "x"}, path="/v1/responses/compact")
    assert attempt(gateway, answer)["cost_usd"] == "0.000250000"
