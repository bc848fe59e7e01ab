"""Sends every line of a bad-inputs file to a real gateway and says which expectations it misses.

    python -m tests.bad_inputs ../shared/cases/bad-inputs.jsonl [ID ...]

The format is `reliability.md` section 9. A surface, target or expectation that the product or this runner does not have is
reported as not supported, never counted as passed.
"""
from __future__ import annotations

import base64
import contextlib
import copy
import gzip
import io
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil

from gateway import cli
from gateway.core.usage import TokenUsage
from gateway.metering import prices
from gateway.metering.prices import Offer
from tests.build import Forked, NotStarted, Process, backend, chat_answer, chat_stream, command, free_port, write_policy
from tests.ledger.postgres import Postgres, binaries
from tests.upstream import End, Pause, Reply, Step, Upstream, stream, until, whole

Json = dict[str, Any]
PATHS = {
    "chat": ("POST", "/v1/chat/completions"), "messages": ("POST", "/v1/messages"), "models": ("GET", "/v1/models"),
    "usage.read": ("GET", "/tollway/usage"), "admin.keys.list": ("GET", "/tollway/admin/keys"),
    "admin.keys.create": ("POST", "/tollway/admin/keys"), "any": ("GET", "/healthz"),
    "admin.backends.create": ("POST", "/tollway/admin/backends"),
    "admin.budgets.update": ("PATCH", "/tollway/admin/keys/KEY_ID"),
}  # fmt: skip
SLACK_MS = 300
"""The machine is shared."""
MODELS = ["m-small", "m-large", "m-selfhosted-vision"]
PRICES = '[test]\nsource = "made up"\nchecked_on = 2026-01-01\nrows = [\n  {model = "m-*", input = "2", cached = "0.5", output = "10"},\n]\n'
POLICY: Json = {
    "team": "team-a",
    "normalize": {"level": "lossless", "hold_out": 0},
    "models": {"allow": ["m-*"]},
    "classes": {"patient": {"value_usd_per_hour": 1}},
    "rules": [{"name": "one", "when": {"model": "m-large"}, "class": "patient"}],
    "budgets": [{"name": "cap", "limit_usd": 1000}],
}
CANARY = "sk-provider-canary-0123456789"


class NotSupported(Exception):
    """The product, or this runner, has it not."""


@dataclass
class Got:
    """What came of a request."""

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ms: float = 0.0
    closed_ms: float | None = None
    """When the gateway closed the connection; None: it did not."""

    @property
    def error(self) -> Json:
        with contextlib.suppress(ValueError, AttributeError):
            found = json.loads(self.body).get("error")
            return found if isinstance(found, dict) else {}
        return {}


class Bench:
    """One gateway in front of one scripted backend and one listener that must stay silent."""

    def __init__(self, folder: Path) -> None:
        self.server = Upstream()
        self.site, self.sink = self.server.site("backend"), self.server.site("sink")
        config = {
            "backends": {"b": backend(self.site, models=MODELS, first_byte_timeout_ms=4500, idle_timeout_ms=3000, connect_timeout_ms=1000)},
            "log_level": "debug",
        }  # fmt: skip
        self.gateway = Process(folder, config, {"team-a": POLICY, "team-b": {"normalize": "off"}}, PRICES)
        self.site.says(stream(*chat_stream(usage=False)))  # the first estimate loads the tokenizer, once
        self.gateway.chat({"model": "m-small", "stream": True, "messages": [{"role": "user", "content": "hi"}]}, team="team-a")
        self.keys = {"team-a": self.gateway.key("team-a"), "team-b": self.gateway.key("team-b"), "admin": self.gateway.admin_key}

    def close(self) -> None:
        self.gateway.close()
        self.server.close()

    def restart(self) -> None:
        self.gateway.terminate()
        self.gateway.wait()
        self.gateway.start()

    def good_call(self) -> bool:
        self.site.says(whole(chat_answer()))
        body = {"model": "m-small", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        return self.gateway.chat(body, team="team-a").status_code == 200

    def held(self) -> int:
        return sum(row["held_nanos"] for row in self.gateway.ask("GET", "/tollway/admin/budgets").json())

    def entries(self) -> dict[str, Json]:
        rows = self.gateway.ask("GET", "/tollway/usage?by=call_id").json()["rows"]
        return {row["call_id"]: row for row in rows}

    def rss_mib(self) -> float:
        return float(psutil.Process(self.gateway.process.pid).memory_info().rss) / 2**20


# one request


def request_bytes(bench: Bench, case: Json) -> tuple[bytes, bytes]:
    """Head and body."""
    given = case["given"]
    if "raw_gen" in given:
        raw = b"".join(text.encode("latin-1") * times for text, times in given["raw_gen"])
        return raw.replace(b"Host: gw\r\n", b"Host: gw\r\nAuthorization: Bearer %s\r\n" % bench.keys["team-a"].encode(), 1), b""
    if case["target"] not in PATHS:
        raise NotSupported(f"target {case['target']}")
    method, path = PATHS[case["target"]]
    path = path.replace("KEY_ID", bench.keys["team-a"].split("_")[1])
    if "query" in given:
        path += "?" + given["query"]
    body = body_of(bench, given)
    headers: list[tuple[str, str]] = [(name, value) for name, value in given.get("headers", ())]
    headers += [(name, "".join(part if isinstance(part, str) else part[0] * part[1] for part in [value])) for name, value in given.get("headers_gen", ())]
    names = {name.lower() for name, _ in headers}
    raw_headers = given.get("raw_headers", ())
    if not any(name.lower() == "host" for name, _ in raw_headers):
        headers.insert(0, ("Host", "gw"))
    headers += [tuple(pair) for pair in raw_headers]
    key = authorization(bench, given)
    if key is not None:
        headers.append(("Authorization", key))
    if method == "POST" and "content-type" not in names:
        headers.append(("Content-Type", "application/json"))
    if (body or method == "POST") and "content-length" not in names:
        headers.append(("Content-Length", str(len(body))))
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers) + "\r\n"
    return head.encode("latin-1"), body


def body_of(bench: Bench, given: Json) -> bytes:
    if "request" in given:
        body: Json = {"model": "m-small", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
        if given["request"] == "ok-stream":
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return json.dumps(body).encode()
    if "json" in given:
        return json.dumps(given["json"]).replace("SINK_URL", bench.sink.url).encode()
    if "body_b64" in given:
        return base64.b64decode(given["body_b64"])
    if "body_gen" in given:
        return b"".join(text.encode() * times for text, times in given["body_gen"])
    return str(given.get("body", "")).encode()


def authorization(bench: Bench, given: Json) -> str | None:
    if "auth_raw" in given:
        return str(given["auth_raw"])
    if "auth_gen" in given:
        return "".join(part if isinstance(part, str) else part[0] * part[1] for part in given["auth_gen"])
    if given.get("auth_mutate") == "last-char":
        key = bench.keys["team-a"]
        return f"Bearer {key[:-1]}{'0' if key[-1] != '0' else '1'}"
    who = given.get("auth", "team-a")
    if who == "none":
        return None
    if who == "revoked-1s-ago":
        made = bench.gateway.make_key("team-a")
        bench.gateway.ask("GET", "/v1/models", made["key"])
        bench.gateway.ask("DELETE", f"/tollway/admin/keys/{made['id']}")
        time.sleep(1)
        return f"Bearer {made['key']}"
    return f"Bearer {bench.keys[who.removesuffix('-member')]}"


def exchange(bench: Bench, head: bytes, body: bytes, trickle_ms: float, patience_s: float, *, to_close: bool) -> Got:
    """Sends, and reads until the answer is whole (`to_close`: until the gateway closes), or patience ends."""
    got, began = Got(), time.monotonic()
    sock = socket.create_connection(("127.0.0.1", bench.gateway.port), 10)
    sending = threading.Thread(target=_send, args=(sock, head, body, trickle_ms), daemon=True)
    sending.start()
    buffer = b""
    try:
        while True:
            left = began + patience_s - time.monotonic()
            if left <= 0:
                break
            sock.settimeout(left)
            more = sock.recv(1 << 20)
            if not more:
                got.closed_ms = (time.monotonic() - began) * 1e3
                break
            buffer += more
            if got.status is None and b"\r\n\r\n" in buffer:
                got.ms = (time.monotonic() - began) * 1e3
                _read_head(got, buffer)
            if got.status is not None and _is_whole(got, buffer) and not to_close:
                break
    except TimeoutError:
        pass
    except OSError:
        got.closed_ms = (time.monotonic() - began) * 1e3
    finally:
        if got.status is not None:
            _is_whole(got, buffer)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
        sending.join(5)
    return got


def _send(sock: socket.socket, head: bytes, body: bytes, trickle_ms: float) -> None:
    with contextlib.suppress(OSError):
        if not trickle_ms:
            sock.sendall(head + body)
            return
        whole_head = body != b""
        if whole_head:
            sock.sendall(head)
        for byte in (body + b" " * 100 if whole_head else head):
            sock.sendall(bytes([byte]))
            time.sleep(trickle_ms / 1e3)


def _read_head(got: Got, buffer: bytes) -> None:
    first, *lines = buffer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    got.status = int(first.split(" ")[1])
    got.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _is_whole(got: Got, buffer: bytes) -> bool:
    rest = buffer.partition(b"\r\n\r\n")[2]
    if "content-length" in got.headers:
        got.body = rest
        return len(rest) >= int(got.headers["content-length"])
    parts = []
    while True:
        size, found, rest = rest.partition(b"\r\n")
        if not found or not size:
            break
        length = int(size, 16)
        parts.append(rest[:length])
        rest = rest[length + 2 :]
        if length == 0:
            got.body = b"".join(parts)
            return True
    got.body = b"".join(parts)
    return False


# scripts of the backend


def script(steps: list[Json]) -> Reply:
    """`upstream_script` as a reply of ours."""
    status, headers, parts = 200, {}, []
    for step in steps:
        if "rst" in step:
            parts.append(End.RESET)
        if "trickle" in step:
            before: list[Step] = []
            for _ in range(3):
                before += [step["trickle"].encode(), Pause(step["every_ms"] / 1e3)]
            return Reply(steps=[*before, End.HANG], framing="raw")
        status = step.get("status", status)
        headers |= {name.lower(): value for name, value in step.get("headers", {}).items()}
        if "json" in step:
            return whole(step["json"], status, **{name.replace("-", "_"): value for name, value in headers.items()})
        if "gzip_zeros_mib" in step:
            packed = gzip.compress(bytes(step["gzip_zeros_mib"] << 20), 1)
            return Reply(headers=(("content-type", "application/json"), *headers.items()), steps=(packed,))
        if "sse" in step:
            parts += [step["sse"].encode()] * step.get("n", 1)
        if "bytes_gen" in step:
            text = b"".join(part.encode() if isinstance(part, str) else part[0].encode() * part[1] for part in step["bytes_gen"])
            parts += [text[i : i + 65_536] for i in range(0, len(text), 65_536)]
    if parts == [End.RESET]:
        return Reply(before=(End.RESET,))
    if status != 200:
        return whole({}, status, **{name.replace("-", "_"): value for name, value in headers.items()})
    spaced = [step for part in parts for step in (part, Pause(0.01))] if len(parts) < 100 else parts
    return stream(*spaced)


# expectations


def over_http(bench: Bench, case: Json) -> Iterator[str]:
    given, expect = case["given"], case["expect"]
    if "twice_with" in given:
        yield from twice(bench, case)
        return
    if given.get("replica") == "other":
        yield from at_another_replica(case)
        return
    if "upstream_script" in given:
        bench.site.says(script(given["upstream_script"]))
    else:
        streamed = given.get("request") == "ok-stream"
        bench.site.says(stream(*chat_stream()) if streamed else whole(chat_answer()))
    head, body = request_bytes(bench, case)
    keys_before = len(bench.gateway.ask("GET", "/tollway/admin/keys").json())
    entries, sent, sunk, rss = bench.entries(), len(bench.site.requests), len(bench.sink.requests), bench.rss_mib()
    patience = max(expect.get("close_within_ms", 0) / 1e3 + 2, expect.get("within_ms", 0) / 1e3 + 2, 12)
    with stall() if "stall_ms" not in expect else stall(bench) as worst:
        got = exchange(bench, head, body, given.get("trickle_ms", 0), patience, to_close="close_within_ms" in expect)
    yield from of_answer(got, expect, case)
    if "stall_ms" in expect and worst() > expect["stall_ms"] + SLACK_MS:
        yield f"the loop stood still for {worst():.0f} ms"
    if "rss_mib" in expect and (grown := bench.rss_mib() - rss) > expect["rss_mib"]:
        yield f"memory grew by {grown:.0f} MiB"
    calls = len(bench.site.requests) - sent
    if "upstream" in expect and calls not in (expect["upstream"] if isinstance(expect["upstream"], list) else [expect["upstream"]]):
        yield f"{calls} calls reached the backend"
    if calls > expect.get("attempts_max", calls):
        yield f"{calls} attempts"
    if len(bench.sink.requests) != sunk:
        yield "the sink was called"
    if "keys_created" in expect and len(bench.gateway.ask("GET", "/tollway/admin/keys").json()) - keys_before != expect["keys_created"]:
        yield "a key was made"
    if expect.get("changed") is False:
        mine = bench.keys["team-a"].split("_")[1]
        if any(key["budget"] or key["limits"] for key in bench.gateway.ask("GET", "/tollway/admin/keys").json() if key["id"] == mine):
            yield "it was changed"
    if expect.get("upstream_closed") and not bench.site.requests[-1].hung_up.wait(3):
        yield "the backend's connection was left open"
    time.sleep(0.1)
    fresh = {call_id: row for call_id, row in bench.entries().items() if call_id not in entries}
    yield from of_ledger(bench, fresh, expect)
    try:
        until(lambda: bench.held() == 0, "holds", 3)
    except AssertionError:
        yield "a hold was not given back"
    if got.status in (429, 503, 529):
        bench.restart()  # the lane is cooling, as it should
    if not bench.good_call():
        yield "a good call after it failed"


def twice(bench: Bench, case: Json) -> Iterator[str]:
    """Two requests under one idempotency key."""
    given, expect = case["given"], case["expect"]
    path = PATHS[case["target"]][1]
    bench.site.says(whole(chat_answer()))
    entries, sent = bench.entries(), len(bench.site.requests)
    headers = {"idempotency-key": given["idempotency_key"]}
    answers = [bench.gateway.chat(body, team=given["auth"], path=path, headers=headers) for body in given["twice_with"]]
    second = answers[-1]
    if second.status_code not in expect["second_status"]:
        yield f"status {second.status_code}, wanted {expect['second_status']}"
    elif second.json()["error"].get("code") != expect["second_code"]:
        yield f"code {second.json()['error'].get('code')}, wanted {expect['second_code']}"
    if len(bench.site.requests) - sent != expect["upstream"]:
        yield f"{len(bench.site.requests) - sent} calls reached the backend"
    time.sleep(0.1)
    yield from of_ledger(bench, {id: row for id, row in bench.entries().items() if id not in entries}, expect)


def at_another_replica(case: Json) -> Iterator[str]:
    """A key revoked at one of two gateways that share a PostgreSQL, shown to the other."""
    if (bin_dir := binaries()) is None:
        raise NotSupported("no PostgreSQL for a second replica")
    expect, method, path = case["expect"], *PATHS[case["target"]]
    with contextlib.ExitStack() as stack, Upstream() as server:
        database = Postgres(bin_dir)
        stack.callback(database.stop)
        config = {"backends": {"b": backend(server.site("two"))}, "database_url": database.url, "key_pepper": "env:PEPPER"}
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        one, two = (stack.enter_context(Process(folder, config, {"team-a": POLICY}, env={"PEPPER": "shared"})) for folder in folders)
        made = one.make_key("team-a")
        until(lambda: two.ask(method, path, made["key"]).status_code == 200, "the key at the other replica", 5)
        one.ask("DELETE", f"/tollway/admin/keys/{made['id']}")
        end = time.monotonic() + expect["within_s_of_revoke"]
        while (status := two.ask(method, path, made["key"]).status_code) not in expect["status"] and time.monotonic() < end:
            time.sleep(0.1)
        if status not in expect["status"]:
            yield f"status {status} {expect['within_s_of_revoke']} s after the revocation"


def of_answer(got: Got, expect: Json, case: Json) -> Iterator[str]:
    closed = got.closed_ms is not None
    if "status" in expect:
        if got.status not in expect["status"] and not (got.status is None and closed and expect.get("or_close")):
            yield f"status {got.status}, wanted {expect['status']}; {got.body[:150]!r}"
    elif got.status is not None and got.status >= 500 and "sse_error_event" not in expect:
        yield f"status {got.status}"
    if got.status is not None and got.status >= 400 and not got.error.get("message"):
        yield f"no error in a dialect's shape: {got.body[:100]!r}"
    for name in ("code", "param"):
        if name in expect and got.error.get(name) != expect[name]:
            yield f"{name} {got.error.get(name)!r}, wanted {expect[name]!r}"
    if "within_ms" in expect and (got.status is None or got.ms > expect["within_ms"] + SLACK_MS):
        yield f"took {got.ms:.0f} ms"
    if "close_within_ms" in expect and (got.closed_ms is None or got.closed_ms > expect["close_within_ms"]):
        yield f"closed after {got.closed_ms} ms" if closed else "not closed"
    if expect.get("close") and not closed and got.headers.get("connection") != "close":
        yield "the connection stays open"
    for word in expect.get("body_lacks", ()):
        if word.encode() in got.body:
            yield f"the answer shows {word}"
    if "retry_after" in expect:
        low, high = expect["retry_after"]
        if not low <= int(got.headers.get("retry-after", "-1")) <= high:
            yield f"retry-after {got.headers.get('retry-after')}"
    error_event = any(line.startswith(b"data:") and b'"error"' in line for line in got.body.split(b"\n"))
    told = error_event or (got.status in (502, 504) and "message" in got.error)  # a status is better where nothing was sent yet
    if "sse_error_event" in expect and told != expect["sse_error_event"]:
        yield f"error event: {error_event}; {got.status} {got.body[-150:]!r}"
    if "sse_done" in expect and (b"[DONE]" in got.body) != expect["sse_done"]:
        yield f"end marker: {b'[DONE]' in got.body}"
    for secret in (CANARY, "Traceback", "File \""):
        if secret.encode() in got.body:
            yield f"the answer shows {secret}"


def of_ledger(bench: Bench, fresh: dict[str, Json], expect: Json) -> Iterator[str]:
    kind = expect.get("ledger")
    calls = [bench.gateway.call(call_id) for call_id in fresh]
    attempts = [attempt for call in calls for attempt in call["attempts"]]
    if any(attempt["cost_usd"] and float(attempt["cost_usd"]) < 0 for attempt in attempts):
        yield "a negative entry"
    if kind is None:
        return
    if kind in ("none", "one", "one-each"):
        if len(attempts) != (0 if kind == "none" else 1):
            yield f"{len(attempts)} entries"
        return
    if not attempts:
        yield "no entry"
    for attempt in attempts:
        cost, source = attempt["cost_usd"], attempt["tokens_from"]
        good = {
            "zero-failed": attempt["status"] == "failed" and cost == "0.000000000",
            "exact": source == "provider",
            "estimated": source in ("estimate", "mixed"),
            "unknown-or-zero": cost is None or float(cost) == 0,
        }[kind]
        if not good:
            yield f"booked as {attempt['status']}, {source}, {cost}; wanted {kind}"
        counts = attempt["tokens"]
        for name, theirs in (("cached", "cache_read"), ("uncached", "uncached")):
            if kind == "exact" and name in expect and counts[theirs] != expect[name]:
                yield f"{theirs} {counts[theirs]}, wanted {expect[name]}"


@contextlib.contextmanager
def stall(bench: Bench | None = None) -> Iterator[Callable[[], float]]:
    """The longest that /healthz took meanwhile, ms."""
    worst, over = [0.0], threading.Event()

    def look() -> None:
        while not over.is_set() and bench is not None:
            began = time.monotonic()
            bench.gateway.http.get(bench.gateway.url + "/healthz")
            worst[0] = max(worst[0], (time.monotonic() - began) * 1e3)
            over.wait(0.005)

    thread = threading.Thread(target=look)
    thread.start()
    yield lambda: worst[0]
    over.set()
    thread.join()


# policies, prices, the command line


def of_policy(bench: Bench, case: Json) -> Iterator[str]:
    given, expect = case["given"], case["expect"]
    folder = bench.gateway.folder
    before = bench.gateway.ask("GET", "/tollway/admin/policies").json()["in_force"]
    text = policy_text(given)
    rss = bench.rss_mib()
    write_policy(folder, "team-a", text)
    try:
        status, said = command("policy", "check", str(folder / "teams"))
        linear = expect.get("or_linear") and status == 0
        if not linear and status not in expect["exit_validate"]:
            yield f"`policy check` ends with {status}"
        if expect.get("error_names_line") and not linear and not any(f"team-a.yaml:{n}" in said for n in range(1, 100)):
            yield f"no line is named: {said[:200]}"
        if expect.get("error_has", "") not in said:
            yield f"{expect['error_has']!r} is not named: {said[:200]}"
        time.sleep(2.0)
        now = bench.gateway.ask("GET", "/tollway/admin/policies").json()
        if (now["in_force"] != before) != expect["applied"] and not linear:
            yield "it was applied" if now["in_force"] != before else "it was not applied"
        if expect["keep_old"] and not linear and not now["problems"]:
            yield "nobody is told"
        if "rss_mib" in expect and bench.rss_mib() - rss > expect["rss_mib"]:
            yield "memory grew"
        if not bench.good_call():
            yield "a good call after it failed"
    finally:
        write_policy(folder, "team-a", POLICY)
        until(lambda: not bench.gateway.ask("GET", "/tollway/admin/policies").json()["problems"], "the good file again")
        time.sleep(1.2)


def policy_text(given: Json) -> str:
    """The good policy with one thing spoilt."""
    policy = copy.deepcopy(POLICY)
    text = json.dumps(policy, indent=1)
    if "append" in given:
        lines = [f"{key}: {json.dumps(value)}" for key, value in policy.items()]
        return "\n".join(lines) + "\n" + str(given["append"])
    if "rename_field" in given:
        old, new = given["rename_field"]
        return text.replace(f'"{old}s"', f'"{new}s"')
    if "truncate_at" in given:
        return text[: text.index("limit_usd") + 4]
    slot = given["slot"]
    if "graph" in given:
        policy["models"]["fallbacks"] = {a: [b] for a, b in given["graph"]}
        return json.dumps(policy, indent=1)
    if "yaml_twice" in given:
        first, second = given["yaml_twice"]
        return text.replace('"limit_usd": 1000', f'"limit_usd": {first},\n "limit_usd": {second}')
    places = {
        "budget_amount": ('"limit_usd": 1000', '"limit_usd": {}'),
        "value_of_waiting": ('"value_usd_per_hour": 1', '"value_usd_per_hour": {}'),
        "pattern": ('"when": {\n    "model": "m-large"\n   }', '"when": {{"model": {}}}'),
    }
    if slot not in places:
        raise NotSupported(f"slot {slot}")
    good, spoilt = places[slot]
    assert good in text, slot
    return text.replace(good, spoilt.format(given["yaml"]))


def of_prices(bench: Bench, case: Json) -> Iterator[str]:
    given, expect = case["given"], case["expect"]
    rows = given.get("rows") or [given["row"]]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "prices.toml"
        path.write_text('[p]\nsource = "x"\nchecked_on = 2026-01-01\nrows = [\n' + "".join(f"  {price_row(row)},\n" for row in rows) + "]\n")
        status, said = command("prices", "check", str(path))
        if status not in expect["exit_validate"]:
            yield f"`prices check` ends with {status}: {said[:150]}"
        if "Traceback" in said:
            yield "a stack trace"
        if "unless_flag" in expect and command("prices", "check", str(path), expect["unless_flag"])[0] != 0:
            yield f"{expect['unless_flag']} does not let it pass"
        if expect.get("cached_charged_as") == "input":
            yield from _charged_in_full(path, rows[0]["model"].partition("/")[2], given["then_usage"])
        if "warn" in expect and status == 0 and expect["warn"] not in said:
            yield f"no word about {expect['warn']}"


def _charged_in_full(path: Path, model: str, usage: Json) -> Iterator[str]:
    book = prices.load((path,), built_in=False)
    counts = (usage["input"], 0), (usage["input"] - usage["cached"], usage["cached"])
    whole_, cached = (
        book.price(Offer("p", model), TokenUsage(uncached=fresh, cache_read=read, output=usage["output"]), time.time_ns() // 1_000)
        for fresh, read in counts
    )
    if cached.cost_nanos is None or cached.cost_nanos != whole_.cost_nanos:
        yield f"cached tokens cost {cached.cost_nanos}, as input {whole_.cost_nanos}"


def price_row(row: Json) -> str:
    parts = [f"model = {json.dumps(row['model'].partition('/')[2])}"]
    names = {"input_per_mtok": "input", "output_per_mtok": "output", "cached_per_mtok": "cached"}
    prices = {names[key]: value for key, value in row.items() if key in names} or {"input": "2", "output": "8"}
    parts += [f"{name} = {json.dumps(value)}" for name, value in prices.items()]
    parts += [f"{ours} = {row[theirs]}" for theirs, ours in (("from", "valid_from"), ("to", "valid_to")) if theirs in row]
    return "{" + ", ".join(parts) + "}"


def of_cli(bench: Bench, case: Json) -> Iterator[str]:
    given, expect = case["given"], case["expect"]
    argv = list(given["argv"])
    if argv[0] not in cli.main.list_commands(click.Context(cli.main)):
        raise NotSupported(f"command {argv[0]}")
    if "noise.bin" in argv:
        noise = bench.gateway.folder / "noise.bin"
        noise.write_bytes(bytes(range(256)) * 40)
        argv[argv.index("noise.bin")] = str(noise)
    if given.get("journal") == "torn-tail":
        yield from of_torn_journal(case)
        return
    keys = len(bench.gateway.ask("GET", "/tollway/admin/keys").json())
    env = {"TOLLWAY_URL": bench.gateway.url, "TOLLWAY_KEY": bench.gateway.admin_key, "PROVIDER_KEY": "x"}
    if argv[0] == "serve":
        argv += ["--config", str(bench.gateway.folder / "tollway.yaml"), "--port", str(free_port()), "--data", str(bench.gateway.folder / "other")]
        yield from _serve_refuses(argv, env, expect)
        return
    status, said = command(*argv, env=env)
    if status not in expect["exit"] and not (expect.get("or_escaped") and "\x1b" not in said and "\u202e" not in said):
        yield f"ends with {status}: {said[:150]}"
    if len(bench.gateway.ask("GET", "/tollway/admin/keys").json()) - keys != expect.get("keys_created", 0):
        yield "a key was made"
    if expect.get("stderr_has", "") not in said:
        yield f"{expect['stderr_has']!r} is not said: {said[:150]}"
    if "Traceback" in said:
        yield "a stack trace"


def _serve_refuses(argv: list[str], env: dict[str, str], expect: Json) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        process = Forked(argv, env, log, None)
        status = process.wait(6)
        if status is None:
            yield "it started"
            process._process.kill()
            process.wait(5)
        elif status not in expect["exit"]:
            yield f"ends with {status}"
        elif expect.get("stderr_has", "") not in log.read_text():
            yield f"{expect['stderr_has']!r} is not said: {log.read_text()[:150]}"


def of_torn_journal(case: Json) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name, Upstream() as server:
        site = server.site("torn")
        site.says(whole(chat_answer()))
        process = Process(Path(name), {"backends": {"b": backend(site)}}, {"plain": {"normalize": "off"}})
        body = {"model": site.model, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        ids = {process.chat(body).headers["x-tollway-call"] for _ in range(20)}
        process.kill()
        (path,) = (Path(name) / "data" / "journal").glob("*.journal")
        path.write_bytes(path.read_bytes() + b"\x99\x00\x00\x00torn")
        try:
            process.start()
        except NotStarted:
            yield "it did not start"
            return
        rows: list[Json] = []
        with contextlib.suppress(AssertionError):
            until(lambda: rows.clear() or rows.extend(process.ask("GET", "/tollway/usage?by=call_id").json()["rows"]) or len(rows) >= 20, "rows")
        if {row["call_id"] for row in rows} != ids or any(row["attempts"] != 1 for row in rows):
            yield f"{len(rows)} calls of {len(ids)}"
        if not any(word in process.text() for word in ("torn", "cannot be read")):
            yield "the log says nothing"
        process.close()


def of_dashboard(bench: Bench, case: Json) -> Iterator[str]:
    from tests.dashboard import bad  # a browser and all of Streamlit: not for the other lines
    from tests.dashboard.browser import chromium_path

    if chromium_path() is None:
        raise NotSupported("no Chromium to look at it with")
    if unknown := set(case["expect"]) - bad.KNOWN:
        raise NotSupported(f"expectation {', '.join(sorted(unknown))}")
    with contextlib.redirect_stdout(io.StringIO()):
        yield from bad.misses(case, bench.sink.url)



SURFACES: dict[str, Callable[[Bench, Json], Iterator[str]]] = {
    "wire": over_http, "json": over_http, "auth": over_http, "upstream": over_http, "ssrf": over_http,
    "policy": of_policy, "prices": of_prices, "cli": of_cli, "dashboard": of_dashboard,
}  # fmt: skip


def misses(bench: Bench, case: Json) -> list[str]:
    """What is not as expected; raises `NotSupported`."""
    if case["surface"] not in SURFACES:
        raise NotSupported(f"surface {case['surface']}")
    return list(SURFACES[case["surface"]](bench, case))


def main(argv: list[str]) -> int:
    path, *only = argv
    cases = [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]
    good = tried = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        bench = Bench(Path(name))
        for case in cases:
            if only and case["id"] not in only:
                continue
            try:
                wrong = misses(bench, case)
            except NotSupported as error:
                print(f"----  {case['id']}  not supported: {error}")
                continue
            except Exception as error:
                wrong = [f"the runner failed: {type(error).__name__}: {error}"]
            tried += 1
            good += not wrong
            print(f"{'ok  ' if not wrong else 'MISS'}  {case['id']}  {case['why']}", *(f"          {text}" for text in wrong), sep="\n", flush=True)
        log = bench.gateway.text()
        bench.close()
    for secret in (CANARY, *bench.keys.values()):
        if secret in log:
            print("MISS  a secret stands in the log")
    print(f"{good} of {tried} as expected; {len(cases) - tried} not supported or not asked for")
    return 0 if good == tried else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
