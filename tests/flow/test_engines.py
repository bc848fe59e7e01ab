"""Engines of one's own behind the gateway: what they are told with a call, and what their word on their cache does."""
from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.commands.report import _receipt
from tests.build import PLAIN, Gateway, chat_answer, chat_body, chat_stream
from tests.upstream import Upstream, until, whole
from tests.upstream import stream as stream_of

METRICS = (Path(__file__).parents[1] / "wire" / "engines" / "vllm-0.33.txt").read_bytes()
CLASSES = {"client_may": {"class": True}, "cache": {"hold_out": 0}}


class _Vllm(ThreadingHTTPServer):
    """As vLLM answers, with its flags set or not: an unknown priority is an error, and cached tokens are told only if asked for."""

    def __init__(self, flags: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.flags, self.calls = flags, list[tuple[dict[str, Any], dict[str, str]]]()


class _Handler(BaseHTTPRequestHandler):
    server: _Vllm

    def do_GET(self) -> None:
        self._say(200, METRICS)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body.get("priority") and not self.server.flags:
            self._say(400, b'{"error": {"message": "Got priority but priority scheduling is not enabled."}}')
            return
        self.server.calls.append((body, {name.lower(): value for name, value in self.headers.items()}))
        usage: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 1}
        if self.server.flags:
            usage["prompt_tokens_details"] = {"cached_tokens": 0}
        choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
        self._say(200, json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}).encode())

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def _behind(folder: Path, url: str, **fields: Any) -> Iterator[Gateway]:
    backend = {"dialect": "openai", "url": f"{url}/v1", "models": ["m"], "cache_salt": True, "connect_timeout_ms": 60_000, **fields}
    with Gateway(folder, {"backends": {"own": backend}}, {"a": {**PLAIN, **CLASSES}, "b": {**PLAIN, **CLASSES}}) as gateway:
        yield gateway


@pytest.mark.parametrize("flags", [True, False], ids=["flags set", "no flags"])
def test_an_engine_is_told_salt_session_and_urgency(tmp_path: Path, flags: bool) -> None:
    """vLLM's lower-first priority by class, only where the probe saw one taken; one salt a team; one session a conversation."""
    server = _Vllm(flags)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with _behind(tmp_path, f"http://127.0.0.1:{server.server_address[1]}", engine="vllm") as gateway:
            services = gateway.asgi.services
            assert services is not None
            until(lambda: "own" in services.live.can, "the probe's answer")
            probed = len(server.calls)
            for team, klass in (("a", "interactive"), ("a", "batch"), ("b", "interactive")):
                answer = gateway.chat(chat_body("m"), team, headers={"x-tollway-class": klass})
                assert answer.status_code == 200, answer.text
            told = server.calls[probed:]
            notes = gateway.ask("GET", "/readyz").json()["notes"]
            found = gateway.ask("GET", "/tollway/admin/engines").json()[0]
            assert gateway.ask("GET", "/tollway/admin/engines", gateway.key("a")).status_code == 403
    finally:
        server.shutdown()
        server.server_close()
    urgent, idle, other = (body.get("priority") for body, _ in told)
    salts = [body["cache_salt"] for body, _ in told]
    assert salts[0] == salts[1] != salts[2]
    sessions = [headers.get("x-session-id") for _, headers in told]
    assert sessions[0] is not None
    assert sessions[0] == sessions[1] != sessions[2], "teams never share a conversation"
    if flags:
        assert urgent == other < 0 < idle
        assert not notes
    else:
        assert urgent is idle is other is None
        assert any("--enable-prompt-tokens-details" in note for note in notes)
        assert set(found["flags"]) >= {"cached_tokens", "priority"}


class _Late(_Handler):
    """The embedded engine's events and answers."""

    def do_GET(self) -> None:
        self._say(200, b": still here\n\n")


def test_readyz_says_that_the_model_loads_and_a_call_waits(tmp_path: Path) -> None:
    """`tollway up` listens for its engine before the model is read: until then 503 in mode `loading`, then ready; nothing fails."""
    server, answers = _Vllm(flags=True), list[int]()
    server.RequestHandlerClass = _Late
    with _behind(tmp_path, f"http://127.0.0.1:{server.server_address[1]}", kv_events="/kv_events") as gateway:
        early = gateway.ask("GET", "/readyz")
        assert (early.status_code, early.json()["mode"], early.json()["status"]) == (503, "loading", "not ready")
        assert "engine own: its model is loading; calls wait for it" in early.json()["notes"]
        call = threading.Thread(target=lambda: answers.append(gateway.chat(chat_body("m"), "a").status_code))
        call.start()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            until(lambda: gateway.ask("GET", "/readyz").status_code == 200, "to be ready")
            assert gateway.ask("GET", "/readyz").json()["mode"] == "normal"
            call.join(60)
        finally:
            server.shutdown()
            server.server_close()
    assert answers == [200]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_engine_gets_no_field_that_steers_it(tmp_path: Path, upstream: Upstream, stream: bool) -> None:
    """It is served without them; the answer's header, the call and `tollway why` say which."""
    site = upstream.site(f"listed-{stream}")
    odd = {"kv_transfer_params": {"remote_host": "10.0.0.1"}, "custom_logit_processor": "x", "mcp": {}, "Max_Tokens": 9_999, "priority": -9}
    names = ", ".join(odd)
    own = {"dialect": "openai", "url": site.url, "models": [site.model], "connect_timeout_ms": 60_000}
    asked = {**chat_body(site.model, stream=stream), "top_k": 4, "chat_template_kwargs": {"enable_thinking": False}}
    with Gateway(tmp_path, {"backends": {"own": {**own, "fields": []}, "open": {**own, "models": ["any"]}}}, {"plain": PLAIN}) as gateway:
        said = [stream_of(*chat_stream())] * 3 if stream else [whole(chat_answer())] * 3
        for reply in said:
            site.says(reply)
        answer = gateway.chat({**asked, **odd})
        assert (answer.status_code, answer.headers["x-tollway-dropped"]) == (200, names)
        plain = gateway.chat(asked)
        assert (plain.status_code, plain.headers.get("x-tollway-dropped")) == (200, None)
        every = gateway.chat({**asked, "model": "any", **odd})
        assert (every.status_code, every.headers.get("x-tollway-dropped")) == (200, None)
        sent = [json.loads(each.body) for each in site.requests]
        call = gateway.call(answer.headers["x-tollway-call"])
        assert not [each for each in gateway.call(plain.headers["x-tollway-call"])["receipts"] if "dropped" in each]
    assert sent[0] == sent[1]
    assert sent[1].items() >= asked.items()
    assert sent[2].items() >= {**asked, "model": "any", **odd}.items()
    told = [each for each in call["receipts"] if "dropped" in each]
    assert [each["place"] for each in told] == [names]
    assert _receipt(told[0]) == f"not sent: {names} (the backend does not get these fields)"
