"""What is refused before anything is sent anywhere: who asks, what is asked, in what form. Errors are in the caller's shape."""
from __future__ import annotations

import gzip
import json
import socket
import time
import zlib
from datetime import datetime
from typing import Any

import httpx
import pytest
import zstandard

from tests.build import Gateway, chat_answer, chat_body, command, expecting, messages_answer, messages_body
from tests.upstream import PATIENCE_S, Site, until, whole

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
PATHS = pytest.mark.parametrize("path", [CHAT, MESSAGES])


def body_for(path: str, site: Site, **fields: Any) -> dict[str, Any]:
    return chat_body(site.model, **fields) if path == CHAT else messages_body(site.model, **fields)


def refused(answer: httpx.Response, path: str, status: int, code: str | None = None, param: str | None = None) -> str:
    """Checks status and shape; gives the message."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/json")
    document = answer.json()
    error: dict[str, Any] = document["error"]
    if path == MESSAGES:
        assert document["type"] == "error"
        assert set(error) == {"type", "message"}
    else:
        assert set(document) == {"error"}
        assert set(error) == {"type", "message", "param", "code"}
        assert code is None or error["code"] == code
        assert param is None or error["param"] == param
    return str(error["message"])


# who asks


@pytest.mark.parametrize("headers", [
    pytest.param({}, id="none"),
    pytest.param({"authorization": "Bearer tw_wrong"}, id="not a key"),
    pytest.param({"authorization": "Bearer"}, id="empty"),
    pytest.param({"authorization": "Basic dTpw"}, id="other scheme"),
    pytest.param({"x-api-key": "sk-ant-api03-something"}, id="a vendor's key"),
    pytest.param({"authorization": "Bearer ' OR '1'='1"}, id="SQL"),
    pytest.param({"authorization": b"Bearer \xff\xfe\xe9"}, id="no ASCII"),
    pytest.param({"authorization": "Bearer " + "a" * 8000}, id="long"),
])  # fmt: skip
@PATHS
def test_without_a_good_key_nothing_is_done(gateway: Gateway, openai: Site, path: str, headers: Any) -> None:
    """401, the same words for every wrong key, and nothing goes out."""
    answer = gateway.http.post(gateway.url + path, json=body_for(path, openai), headers=headers)
    assert "key" in refused(answer, path, 401, "invalid_api_key")
    assert answer.headers["x-should-retry"] == "false"
    assert openai.requests == []


@PATHS
def test_both_places_of_a_key_are_read(gateway: Gateway, openai: Site, anthropic: Site, path: str) -> None:
    """Each vendor's header opens each path; the scheme's case does not matter."""
    site = openai if path == CHAT else anthropic
    site.says(whole(chat_answer() if path == CHAT else messages_answer()))
    key = gateway.key()
    other = "session-token-of-the-app"
    for headers in (
        {"authorization": f"Bearer {key}"}, {"authorization": f"bearer {key}"}, {"x-api-key": key},
        {"authorization": f"Bearer {other}", "x-api-key": key}, {"authorization": f"Bearer {key}", "x-api-key": other},
    ):  # fmt: skip
        assert gateway.http.post(gateway.url + path, json=body_for(path, site), headers=headers).status_code == 200
    assert other not in str([request.raw_headers for request in site.requests])


def test_a_key_with_its_last_letter_changed_opens_nothing(gateway: Gateway) -> None:
    """Also right after the good one was used."""
    key = gateway.key()
    assert gateway.ask("GET", "/v1/models", key).status_code == 200
    bad = key[:-1] + ("0" if key[-1] != "0" else "1")
    assert gateway.ask("GET", "/v1/models", bad).status_code == 401


def test_a_revoked_key_is_told_so_at_once(gateway: Gateway, openai: Site) -> None:
    """`DELETE /tollway/admin/keys/{id}` counts from the next call on."""
    openai.says(whole(chat_answer()))
    made = gateway.make_key("plain")
    assert gateway.ask("POST", CHAT, made["key"], json=chat_body(openai.model)).status_code == 200
    assert gateway.ask("DELETE", f"/tollway/admin/keys/{made['id']}").status_code == 200
    assert "revoked" in refused(gateway.ask("POST", CHAT, made["key"], json=chat_body(openai.model)), CHAT, 401)
    assert len(openai.requests) == 1


def test_an_expired_key_is_told_so(gateway: Gateway, openai: Site) -> None:
    """A key works until its time and not after."""
    openai.says(whole(chat_answer()))
    now_us = time.time_ns() // 1_000
    made = gateway.make_key("plain", expires_us=now_us + 3_600_000_000)
    key = made["key"]
    assert gateway.ask("POST", CHAT, key, json=chat_body(openai.model)).status_code == 200

    def expires_soon() -> bool:
        """False where the machine was so slow that the time lay in the past."""
        soon = time.time_ns() // 1_000 + 2_000_000
        return gateway.ask("PATCH", f"/tollway/admin/keys/{made['id']}", json={"expires_us": soon}).status_code == 200

    until(expires_soon, "an end of the key in two seconds")
    answer = until(lambda: found if (found := gateway.ask("POST", CHAT, key, json=chat_body(openai.model))).is_error else None, "its end")
    assert "expired" in refused(answer, CHAT, 401)


@pytest.mark.parametrize(("method", "path"), [
    ("GET", "/tollway/admin/keys"), ("POST", "/tollway/admin/keys"), ("DELETE", "/tollway/admin/keys/x"),
    ("GET", "/tollway/admin/policies"), ("GET", "/tollway/admin/budgets"), ("GET", "/tollway/admin/prices?model=test/m-a"),
    ("GET", "/tollway/admin/engines"),
])  # fmt: skip
def test_admin_paths_need_an_admin_key(gateway: Gateway, method: str, path: str) -> None:
    """A team's key is a 403, none is a 401, whatever address the caller claims to have."""
    assert gateway.ask(method, path, gateway.key(), json={"team": "x", "role": "admin"}).status_code == 403
    forwarded = {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "x-forwarded-host": "localhost", "x-forwarded-user": "admin"}
    assert gateway.http.request(method, gateway.url + path, headers=forwarded, json={"team": "x"}).status_code == 401


def test_a_team_sees_its_own_sums_only(gateway: Gateway) -> None:
    """Another team's name in the query is not found, and does not appear in the answer."""
    answer = gateway.ask("GET", "/tollway/usage?team=other", gateway.key())
    assert answer.status_code == 404
    assert "other" not in answer.text
    assert gateway.ask("GET", "/tollway/usage?by=team", gateway.key()).status_code == 200


# what is asked


@PATHS
def test_an_unknown_model_is_a_404(gateway: Gateway, openai: Site, path: str) -> None:
    """The error names the model and the way to find one."""
    answer = gateway.chat({**body_for(path, openai), "model": "../../admin?x="}, path=path)
    assert "/v1/models" in refused(answer, path, 404, "model_not_found", "model")


@PATHS
def test_a_model_that_the_policy_denies_is_a_403(gateway: Gateway, openai: Site, path: str) -> None:
    """The model is there, the team may not use it; the list does not show it."""
    answer = gateway.chat(body_for(path, openai), team="narrow", path=path)
    refused(answer, path, 403)
    assert openai.requests == []
    names = [model["id"] for model in gateway.ask("GET", "/v1/models", gateway.key("narrow")).json()["data"]]
    assert names == ["m-o0"]
    assert gateway.ask("GET", f"/v1/models/{openai.model}", gateway.key("narrow")).status_code == 404


GOOD = b'{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}'


@pytest.mark.parametrize(("body", "code", "param"), [
    pytest.param(b"", None, None, id="empty"),
    pytest.param(b"{", "invalid_json", None, id="half"),
    pytest.param(b"[]", "invalid_json", None, id="array"),
    pytest.param(b"null", "invalid_json", None, id="null"),
    pytest.param(b'"text"', "invalid_json", None, id="string"),
    pytest.param(GOOD + b"x", "invalid_json", None, id="something behind"),
    pytest.param(GOOD.replace(b"5", b"NaN"), "invalid_json", None, id="NaN"),
    pytest.param(GOOD.replace(b"hi", b"\xff\xfe"), "invalid_json", None, id="no UTF-8"),
    pytest.param(GOOD.replace(b"hi", b"\\ud800"), "invalid_json", None, id="lone surrogate"),
    pytest.param(GOOD.replace(b"hi", b"a\nb"), "invalid_json", None, id="line feed in a string"),
    pytest.param(GOOD.replace(b'"hi"', b"[" * 200 + b"]" * 200), "too_deep", None, id="deep"),
    pytest.param(GOOD.replace(b'"hi"', b"[" * 100_000 + b"]" * 100_000), "too_deep", None, id="very deep"),
    pytest.param(b'{"model": "a", ' + GOOD[1:], "duplicate_key", None, id="model twice"),
    pytest.param(b'{"m\\u006fdel": "a", ' + GOOD[1:], "duplicate_key", None, id="model twice, spelt apart"),
    pytest.param(b'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}', None, "model", id="no model"),
    pytest.param(GOOD.replace(b'"m"', b"7"), None, "model", id="model a number"),
    pytest.param(GOOD.replace(b'"m"', b'""'), None, "model", id="model empty"),
    pytest.param(b'{"model": "m", "max_tokens": 5}', None, "messages", id="no messages"),
    pytest.param(GOOD.replace(b'[{"role": "user", "content": "hi"}]', b"{}"), None, "messages", id="messages an object"),
    pytest.param(GOOD.replace(b"5", b"-1"), None, "max_tokens", id="negative max_tokens"),
    pytest.param(GOOD.replace(b"5", b"true"), None, "max_tokens", id="max_tokens true"),
    pytest.param(GOOD.replace(b"5", b'"5"'), None, "max_tokens", id="max_tokens text"),
    pytest.param(GOOD.replace(b"5", b"5.5"), None, "max_tokens", id="max_tokens broken"),
    pytest.param(GOOD.replace(b"5", b"9" * 5000), None, "max_tokens", id="max_tokens endless"),
    pytest.param(GOOD.replace(b"5", b'5, "stream": "yes"'), None, "stream", id="stream text"),
])  # fmt: skip
@PATHS
def test_a_body_that_cannot_be_read_is_a_400(gateway: Gateway, path: str, body: bytes, code: str | None, param: str | None) -> None:
    """The error says what is wrong and names the field; the values of the request do not appear in it."""
    message = refused(gateway.chat(body, path=path), path, 400, code, param)
    assert "Traceback" not in message
    assert len(message) < 500


@PATHS
def test_a_body_over_the_limit_is_a_413(gateway: Gateway, openai: Site, path: str) -> None:
    """The limit here is 1 MiB; the client sees the answer though it is still sending."""
    refused(gateway.chat(body_for(path, openai, text="x" * (1 << 20)), path=path), path, 413)
    chunks = iter([b"x" * 65_536] * 40)
    answer = gateway.ask("POST", path, gateway.key(), content=chunks, headers={"content-type": "application/json"})
    refused(answer, path, 413)
    assert openai.requests == []


def test_a_declared_length_over_the_limit_is_refused_before_reading(gateway: Gateway) -> None:
    """Nobody waits for 99 GB."""
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as sock:
        sock.sendall(
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.key()}\r\nContent-Type: application/json\r\n"
            "Content-Length: 99999999999\r\n\r\n{}".encode()
        )
        with expecting(25.0):  # a body's time is thirty seconds
            assert sock.recv(100).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json"])
@PATHS
def test_another_content_type_is_a_415(gateway: Gateway, openai: Site, path: str, kind: str) -> None:
    """A browser can send text/plain across sites without asking first."""
    refused(gateway.chat(body_for(path, openai), path=path, headers={"content-type": kind}), path, 415)
    assert openai.requests == []


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_by_any_spelling_is_read(gateway: Gateway, openai: Site, kind: str) -> None:
    openai.says(whole(chat_answer()))
    assert gateway.chat(chat_body(openai.model), headers={"content-type": kind}).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "zstd"])
def test_a_packed_request_is_unpacked(gateway: Gateway, openai: Site, encoding: str) -> None:
    """The backend gets the plain body, and no content-encoding."""
    openai.says(whole(chat_answer()))
    body = json.dumps(chat_body(openai.model)).encode()
    packed = zstandard.compress(body) if encoding == "zstd" else gzip.compress(body)
    assert gateway.chat(packed, headers={"content-encoding": encoding}).status_code == 200
    assert openai.requests[0].body == body
    assert "content-encoding" not in openai.requests[0].headers


@pytest.mark.parametrize(("body", "encoding", "status"), [
    pytest.param(zlib.compress(GOOD), "gzip", 400, id="not gzip"),
    pytest.param(gzip.compress(GOOD)[:-12], "gzip", 400, id="cut"),
    pytest.param(gzip.compress(bytes(64 << 20)), "gzip", 413, id="bomb"),
    pytest.param(gzip.compress(b" " * (1 << 20) + GOOD, 0), "gzip", 413, id="over the limit once unpacked"),
    pytest.param(GOOD, "br", 415, id="brotli"),
    pytest.param(GOOD, "zstd", 400, id="not zstd"),
    pytest.param(zstandard.compress(GOOD)[:-3], "zstd", 400, id="cut zstd"),
    pytest.param(zstandard.compress(bytes(64 << 20)), "zstd", 413, id="zstd bomb"),
    pytest.param(GOOD, "gzip, gzip", 415, id="twice"),
    pytest.param(gzip.compress(GOOD) + gzip.compress(GOOD), "gzip", 400, id="two members"),
])  # fmt: skip
@PATHS
def test_a_packed_request_that_cannot_be_unpacked_is_refused(
    gateway: Gateway, path: str, body: bytes, encoding: str, status: int
) -> None:
    """By name, and never misread as JSON."""
    refused(gateway.chat(body, path=path, headers={"content-encoding": encoding}), path, status)


# where it is asked


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@PATHS
def test_another_method_is_a_405(gateway: Gateway, path: str, method: str) -> None:
    refused(gateway.ask(method, path, gateway.key()), path, 405)


@pytest.mark.parametrize(("path", "shape"), [
    ("/v1/nothing", CHAT), ("/nothing", CHAT), ("/v1/messages/nothing", MESSAGES), ("/v1//chat/completions", CHAT),
    ("/v1/chat/completions/", CHAT), ("/tollway/calls", CHAT), ("/%2e%2e/etc/passwd", CHAT),
])  # fmt: skip
def test_an_unknown_path_is_a_404_in_the_right_shape(gateway: Gateway, path: str, shape: str) -> None:
    refused(gateway.ask("POST", path, gateway.key(), json={}), shape, 404)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_health_needs_no_key(gateway: Gateway, path: str) -> None:
    answer = gateway.http.get(gateway.url + path)
    assert answer.status_code == 200


def test_metrics_hold_no_secret_and_no_words_of_a_client(gateway: Gateway, openai: Site) -> None:
    """Nothing a client sends becomes a label."""
    openai.says(whole(chat_answer()))
    headers = {"x-tollway-class": "canary-class", "x-tollway-tags": "canary=tag", "user-agent": "canary-agent/1", "x-tollway-run": "canary-run"}
    gateway.chat(chat_body(openai.model, "canary-prompt"), headers=headers)
    text = gateway.http.get(gateway.url + "/metrics").text
    assert "canary" not in text
    assert gateway.key() not in text


@pytest.mark.parametrize("value", ["x" * 3000, "a=b," * 500, "é=ü", "=,=,=", "a\tb=c"])
def test_odd_tags_and_names_never_break_a_call(gateway: Gateway, openai: Site, value: str) -> None:
    """What does not look like a tag, a run or a class is left out."""
    openai.says(whole(chat_answer()))
    headers = {name: value.encode() for name in ("x-tollway-tags", "x-tollway-run", "x-tollway-class", "x-tollway-subgoal")}
    answer = gateway.chat(chat_body(openai.model), headers=headers)
    assert answer.status_code == 200
    assert gateway.call(answer.headers["x-tollway-call"])["status"] == "ok"


@pytest.mark.parametrize("value", ["-5", "soon", "1e3", "99999999999999"])
def test_a_deadline_that_is_none_is_a_400(gateway: Gateway, openai: Site, value: str) -> None:
    assert "deadline" in refused(gateway.chat(chat_body(openai.model), headers={"x-tollway-deadline-ms": value}), CHAT, 400)


# the command line against the running gateway


def test_keys_are_made_listed_and_revoked_by_command(gateway: Gateway, openai: Site) -> None:
    """`tollway keys` does what the admin paths do, and shows a secret once."""
    openai.says(whole(chat_answer()))
    where = ("--url", gateway.url)
    env = {"TOLLWAY_KEY": gateway.admin_key, "COLUMNS": "200"}
    status, key = command("keys", "create", "--team", "plain", "--name", "by-command", "--expires", "30d", *where, "--json", env=env)
    assert status == 0, key
    made = json.loads(key)
    assert gateway.ask("POST", CHAT, made["key"], json=chat_body(openai.model)).status_code == 200
    status, listed = command("keys", "list", *where, env=env)
    assert status == 0
    assert made["id"] in listed
    assert made["key"] not in listed
    assert command("keys", "revoke", made["id"], *where, env=env)[0] == 0
    assert gateway.ask("POST", CHAT, made["key"], json=chat_body(openai.model)).status_code == 401
    assert command("keys", "revoke", "nosuchkey", *where, env=env)[0] == 1


@pytest.mark.parametrize(("team", "note"), [("plain", False), ("plian", True)])
def test_a_team_that_no_policy_file_names_is_noted(gateway: Gateway, team: str, note: bool) -> None:
    """Its key is made, for teams may live by the default policy; a slip is seen at once, with the nearest team."""
    status, said = command("keys", "create", "--team", team, "--url", gateway.url, env={"TOLLWAY_KEY": gateway.admin_key})
    assert status == 0
    assert ("no policy file names team plian (did you mean `plain`?)" in said) == note


@pytest.mark.parametrize(("text", "instant"), [
    ("2099-01-31", "2099-01-31T00:00:00Z"), ("2099-01-31T10:00", "2099-01-31T10:00:00Z"), ("2099-01-31T10:00+02:00", "2099-01-31T08:00:00Z"),
])  # fmt: skip
def test_a_key_expires_when_it_was_said(gateway: Gateway, text: str, instant: str) -> None:
    """In UTC, unless another zone is named."""
    env = {"TOLLWAY_KEY": gateway.admin_key}
    made = json.loads(command("keys", "create", "--team", "plain", "--expires", text, "--url", gateway.url, "--json", env=env)[1])
    assert made["expires_us"] == int(datetime.fromisoformat(instant).timestamp() * 1e6)


@pytest.mark.parametrize("argv", [
    ("--team", "x\x1b[2J\u202egnp"), ("--team", ""), ("--team", "plain", "--expires", "never"), ("--team", "plain", "--expires", "2001-01-01"),
])  # fmt: skip
def test_a_key_that_makes_no_sense_is_not_made(gateway: Gateway, argv: tuple[str, ...]) -> None:
    """The command fails in words; nothing that moves a terminal's cursor is printed back."""
    before = len(gateway.ask("GET", "/tollway/admin/keys").json())
    status, said = command("keys", "create", *argv, "--url", gateway.url, env={"TOLLWAY_KEY": gateway.admin_key})
    assert status in (1, 2)
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "Traceback" not in said
    assert len(gateway.ask("GET", "/tollway/admin/keys").json()) == before
