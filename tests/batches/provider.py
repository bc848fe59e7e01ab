"""A provider with live calls and a batch API, OpenAI's and Anthropic's, over real HTTP: what a batch does is set by the test."""
from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.build import chat_answer, messages_answer


class Provider:
    """A context manager. `ready`: batches end when they are looked at; `refuse`: status for new batches; `undone`: how many
    of a batch's calls it leaves undone; `wrong`: custom ids' places that get a 400."""

    def __init__(self) -> None:
        self.ready, self.refuse, self.undone, self.fails = True, 0, 0, False
        self.wrong: set[int] = set()
        self.live: list[dict[str, Any]] = []
        self.live_status = 200
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.keys: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                return None

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.keys.add(self.headers.get("authorization") or self.headers.get("x-api-key") or "")
                status, data = outer.serve(self.command, self.path, body)
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Provider:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        parts = path.removeprefix("/v1/").split("/")
        match (method, parts):
            case ("POST", ["chat", "completions"]):
                self.live.append(json.loads(body))
                answer = chat_answer() if self.live_status == 200 else {"error": {"message": "busy", "type": "x"}}
                return self.live_status, json.dumps(answer).encode()
            case ("POST", ["files"]):
                name = f"file-p{len(self.files)}"
                self.files[name] = body.split(b"\r\n\r\n", 2)[2].rpartition(b"\r\n--")[0]
                assert b'name="purpose"\r\n\r\nbatch' in body
                return 200, json.dumps({"id": name}).encode()
            case ("POST", ["batches"]):
                asked = json.loads(body)
                rows = [json.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
                return self._new({row["custom_id"]: row["body"] for row in rows}, endpoint=asked["endpoint"])
            case ("POST", ["messages", "batches"]):
                return self._new({row["custom_id"]: row["params"] for row in json.loads(body)["requests"]})
            case ("GET", ["files", file, "content"]):
                return 200, self.files[file]
            case ("GET", ["messages", "batches", id, "results"]):
                return 200, self._results(id, "anthropic")
            case ("GET", ["messages", "batches", id]):
                self._look(id)
                return 200, json.dumps({"id": id, "processing_status": "ended" if self.batches[id]["ended"] else "in_progress"}).encode()
            case ("GET", ["batches", id]):
                return 200, self._openai(id)
            case ("POST", ["messages", "batches", id, "cancel"] | ["batches", id, "cancel"]):
                self.batches[id].update(cancelled=True, ended=True)
                return 200, json.dumps({"id": id}).encode()
        return 404, b'{"error": {"message": "nothing here", "type": "x"}}'

    def _new(self, calls: dict[str, Any], **more: Any) -> tuple[int, bytes]:
        if self.refuse:
            return self.refuse, b'{"error": {"message": "no", "type": "x"}}'
        id = f"batch_p{len(self.batches)}"
        self.batches[id] = {"calls": calls, "ended": False, "cancelled": False, **more}
        return 200, json.dumps({"id": id, "status": "validating"}).encode()

    def _look(self, id: str) -> None:
        self.batches[id]["ended"] |= self.ready

    def _openai(self, id: str) -> bytes:
        self._look(id)
        batch = self.batches[id]
        if self.fails:
            return json.dumps({"id": id, "status": "failed", "errors": {"data": [{"message": "token limit"}]}}).encode()
        if not batch["ended"]:
            return json.dumps({"id": id, "status": "in_progress"}).encode()
        self.files[f"out-{id}"] = self._results(id, "openai")
        return json.dumps({"id": id, "status": "cancelled" if batch["cancelled"] else "completed", "output_file_id": f"out-{id}"}).encode()

    def _results(self, id: str, wire: str) -> bytes:
        batch, rows = self.batches[id], []
        done = [] if batch["cancelled"] else list(batch["calls"])[: len(batch["calls"]) - self.undone]
        for n, name in enumerate(reversed(done)):  # in no order that was asked for
            bad = len(done) - 1 - n in self.wrong
            if wire == "openai":
                body = {"error": {"message": "bad", "type": "invalid_request_error"}} if bad else chat_answer(f"answer to {name}")
                rows.append({"custom_id": name, "response": {"status_code": 400 if bad else 200, "body": body}, "error": None})
            elif bad:
                error = {"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}}
                rows.append({"custom_id": name, "result": {"type": "errored", "error": error}})
            else:
                tools = batch["calls"][name].get("tools")
                called = {"content": [{"type": "tool_use", "id": "toolu_1", "name": tools[0]["name"], "input": {}}]} if tools else {}
                message = messages_answer(f"answer to {name}", **called)
                rows.append({"custom_id": name, "result": {"type": "succeeded", "message": message}})
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
