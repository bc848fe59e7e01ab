"""The client's side of batches: OpenAI's `/v1/files` and `/v1/batches`, each team seeing its own.

What is not ours (other purposes, ids that a provider gave) is passed on as it was before there was a queue.
"""
from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from email.message import Message
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson

from gateway.batches.book import Batch, Book, Line, Stored
from gateway.core import clock
from gateway.core.call import Call
from gateway.core.errors import BadRequest, GatewayError, MethodNotAllowed, NotFound, TooLarge
from gateway.core.ids import new_id
from gateway.relay import Client
from gateway.settings_file import QueueSettings

Pass = Callable[[Call, str, str, Client], Awaitable[None]]
ENDPOINTS = {
    "/v1/chat/completions": "openai_chat", "/v1/responses": "openai_responses", "/v1/embeddings": "openai_embeddings",
    "/v1/messages": "anthropic_messages",
}  # fmt: skip
"""Paths whose calls may stand in a batch, and their dialects."""
_OURS = ("file-tw", "batch_tw")
_WINDOW = re.compile(r"(\d{1,4})([hm])")
_MOST_WINDOW_S = 30 * 86_400
_MOST_CALLS = 50_000
_MOST_PROBLEMS = 20
_INHERITED = ("client", "tags", "run", "parent_run", "subgoal")
_JSON = [(b"content-type", b"application/json")]
_ENDED = frozenset({"completed", "expired", "cancelled", "failed"})


class QueueFull(GatewayError):
    """More would wait than the operator allows."""

    status, code, retry = 429, "queue_full", True


class Desk:
    """Answers requests; `wake` is called when there is something to do."""

    def __init__(self, book: Book, limits: QueueSettings, passage: Pass, wake: Callable[[], None]) -> None:
        self._book, self._limits, self._passage, self._wake = book, limits, passage, wake

    async def serve(self, call: Call, method: str, place: str, client: Client) -> None:
        """As `Passage.serve`. Raises `GatewayError`."""
        path, _, query = place.partition("?")
        kind, *rest = path.removeprefix("/v1/").split("/")
        if kind not in ("files", "batches") or not path.startswith("/v1/") or (rest and not unquote(rest[0]).startswith(_OURS)):
            await self._passage(call, method, place, client)
            return
        answer: dict[str, Any] | bytes
        match (kind, method, [unquote(part) for part in rest]):
            case ("files", "POST", []):
                upload = _upload(call)
                if upload["purpose"] != b"batch":
                    await self._passage(call, method, place, client)
                    return
                answer = await asyncio.to_thread(self._put_file, call, upload)
            case ("files", "GET", []):
                answer = _listed([_file(one) for one in await asyncio.to_thread(self._book.files, call.tenant.team)], query)
            case ("files", "GET", [id]):
                answer = _file(await self._file(call, id))
            case ("files", "GET", [id, "content"]):
                await self._file(call, id)
                answer = await asyncio.to_thread(self._book.content, call.tenant.team, id) or b""
            case ("files", "DELETE", [id]):
                await self._file(call, id)
                await asyncio.to_thread(self._book.drop_file, call.tenant.team, id)
                answer = {"id": id, "object": "file", "deleted": True}
            case ("batches", "POST", []):
                answer = await asyncio.to_thread(self._put_batch, call)
                self._wake()
            case ("batches", "GET", []):
                found = await asyncio.to_thread(self._book.batches, "team = ?", (call.tenant.team,))
                shown = await asyncio.to_thread(lambda: [self._batch(one) for one in found])
                answer = _listed(shown, query)
            case ("batches", "GET", [id]):
                answer = await asyncio.to_thread(self._batch, await self._one(call, id))
            case ("batches", "POST", [id, "cancel"]):
                await self._one(call, id)
                await asyncio.to_thread(self._book.set_batch, id, ("in_progress",), status="cancelling")
                self._wake()
                answer = await asyncio.to_thread(self._batch, await self._one(call, id))
            case _:
                raise MethodNotAllowed.of(f"{path[:100]} does not take {method}", "GET, POST, DELETE")
        body = answer if isinstance(answer, bytes) else orjson.dumps(answer)
        await client.respond(200, _JSON if not isinstance(answer, bytes) else [(b"content-type", b"application/jsonl")], body)

    # files

    async def _file(self, call: Call, id: str) -> Stored:
        found = await asyncio.to_thread(self._book.files, call.tenant.team, id)
        if not found:
            raise NotFound(f"there is no file {id[:80]!r} of your team")
        return found[0]

    def _put_file(self, call: Call, upload: Mapping[str, bytes]) -> dict[str, Any]:
        content = upload["file"]
        if self._book.size_bytes() + len(content) > self._limits.max_mib << 20:
            text = f"the queue keeps {self._limits.max_mib} MiB at most; delete files, or tell the operator"
            raise QueueFull(text, retry_after_s=60)
        at_us = clock.now_us()
        id = new_id("file-tw", at_us)
        name = upload["filename"].decode("utf-8", "replace")[:200] or "batch.jsonl"
        self._book.put_file(id, call.tenant.team, name, "batch", at_us, content)
        return _file(Stored(id, call.tenant.team, name, "batch", at_us, len(content)))

    # batches

    async def _one(self, call: Call, id: str) -> Batch:
        found = await asyncio.to_thread(self._book.batches, "team = ? AND id = ?", (call.tenant.team, id))
        if not found:
            raise NotFound(f"there is no batch {id[:80]!r} of your team")
        return found[0]

    def _put_batch(self, call: Call) -> dict[str, Any]:
        asked = _object(call.body)
        endpoint, window, file = (asked.get(name) for name in ("endpoint", "completion_window", "input_file_id"))
        if not isinstance(endpoint, str) or endpoint not in ENDPOINTS:
            raise BadRequest(f"endpoint must be one of {', '.join(ENDPOINTS)}", param="endpoint")
        window_s = _window_s(window)
        metadata = _metadata(asked.get("metadata") or {})
        content = self._book.content(call.tenant.team, file) if isinstance(file, str) else None
        if content is None:
            raise BadRequest(f"there is no file {str(file)[:80]!r} of your team", param="input_file_id")
        calls = list(_lines(content, str(endpoint)))
        at_us = clock.now_us()
        batch = Batch(
            id=new_id("batch_tw", at_us), team=call.tenant.team, key_id=call.tenant.key_id, endpoint=str(endpoint),
            input=str(file), at_us=at_us, deadline_us=at_us + int(window_s * 1e6), status="in_progress",
            detail={
                "window": window, "metadata": metadata,
                "class": call.headers.get("x-tollway-class", "batch"),
                "who": {name: getattr(call, name) for name in _INHERITED},
            },
        )  # fmt: skip
        if not self._book.put_batch(batch, calls, self._limits.max_calls):
            raise QueueFull(f"with these {len(calls)} calls more than {self._limits.max_calls} would wait", retry_after_s=60)
        return self._batch(batch)

    def _batch(self, batch: Batch) -> dict[str, Any]:
        counts = self._book.counts(batch.id)
        ended_s = None if batch.ended_us is None else batch.ended_us // 1_000_000
        return {
            "id": batch.id, "object": "batch", "endpoint": batch.endpoint, "errors": None, "input_file_id": batch.input,
            "completion_window": batch.detail["window"], "status": batch.status, "output_file_id": batch.output,
            "error_file_id": batch.errors, "created_at": batch.at_us // 1_000_000, "in_progress_at": batch.at_us // 1_000_000,
            "expires_at": batch.deadline_us // 1_000_000, "finalizing_at": ended_s,
            **{f"{status}_at": ended_s if batch.status == status else None for status in sorted(_ENDED)},
            "cancelling_at": ended_s if batch.status in ("cancelling", "cancelled") else None,
            "request_counts": {
                "total": sum(counts.values()), "completed": counts.get("completed", 0),
                "failed": sum(counts.get(how, 0) for how in ("failed", "cancelled", "expired")),
            },
            "metadata": batch.detail["metadata"],
        }  # fmt: skip


def _metadata(found: Any) -> dict[str, str]:
    texts = found.values() if isinstance(found, dict) else [None]
    if len(texts) > 16 or not all(isinstance(text, str) and len(text) <= 512 for text in texts):
        raise BadRequest("metadata must be an object of at most 16 texts", param="metadata")
    return dict(found)


def result(line: Line) -> dict[str, Any]:
    """A call's line in the output or error file."""
    found: dict[str, Any] = {"id": f"batch_req_{line.batch[8:]}_{line.n}", "custom_id": line.custom_id}
    found |= {"response": None, "error": None}
    if line.state == "done":
        body = orjson.loads(line.answer or b"null")
        found["response"] = {"status_code": line.status, "request_id": line.call_id or "", "body": body}
    else:
        why = "the batch was cancelled" if line.state == "cancelled" else "the completion window was over before its turn came"
        found["error"] = {"code": f"batch_{line.state}", "message": why}
    return found


def _lines(content: bytes, endpoint: str) -> Iterator[tuple[str, bytes]]:
    """(custom id, body) of each call. Raises `BadRequest` with the first mistakes and their lines."""
    problems: list[str] = []
    seen: set[str] = set()
    for number, text in enumerate(content.split(b"\n"), 1):
        if not text.strip():
            continue
        said = _wrong(text, endpoint, seen)
        if isinstance(said, str):
            problems.append(f"line {number}: {said}")
            if len(problems) == _MOST_PROBLEMS:
                break
        elif not problems:
            yield said
        if len(seen) > _MOST_CALLS:
            raise TooLarge(f"a batch takes {_MOST_CALLS} calls at most")
    if problems or not seen:
        raise BadRequest("; ".join(problems) or "the file has no calls", param="input_file_id")


def _wrong(text: bytes, endpoint: str, seen: set[str]) -> str | tuple[str, bytes]:
    """What is wrong with a line, or its custom id and body."""
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError:
        return "is not JSON"
    if not isinstance(row, dict):
        return "is not an object"
    custom_id, body = row.get("custom_id"), row.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= 512:
        return "custom_id must be a text of at most 512 characters"
    if custom_id in seen:
        return "custom_id stands on an earlier line too"
    if row.get("method", "POST") != "POST" or row.get("url") != endpoint:
        return f"must be a POST to the batch's endpoint {endpoint}"
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        return "body must be an object with a model"
    if body.get("stream"):
        return "nobody reads a stream here; leave `stream` out"
    seen.add(custom_id)
    return custom_id, orjson.dumps(body)


def _upload(call: Call) -> dict[str, bytes]:
    """Fields of a multipart form; `filename` of its file. Raises `BadRequest`."""
    kind = Message()
    kind["content-type"] = call.headers.get("content-type", "")
    boundary = kind.get_param("boundary")
    if kind.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        raise BadRequest("send the file as multipart/form-data, with its purpose")
    found = {"purpose": b"", "filename": b""}
    for part in (b"\r\n" + call.body).split(b"\r\n--" + boundary.encode("latin-1", "replace"))[1:-1]:
        head, _, data = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        about = Message()
        for line in head.decode("utf-8", "replace").split("\r\n"):
            if line.lower().startswith("content-disposition:"):
                about["content-disposition"] = line.partition(":")[2].strip()
        name = about.get_param("name", header="content-disposition")
        if isinstance(name, str):
            found[name] = data
            if name == "file":
                found["filename"] = str(about.get_filename() or "").encode()
    if "file" not in found:
        raise BadRequest("the form has no field `file`", param="file")
    return found


def _window_s(text: Any) -> float:
    match = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    seconds = 0 if match is None else int(match[1]) * (3_600 if match[2] == "h" else 60)
    if not 0 < seconds <= _MOST_WINDOW_S:
        raise BadRequest("completion_window must be a time such as 24h or 90m, at most 720h", param="completion_window")
    return float(seconds)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        error = BadRequest("the body must be a JSON object")
        error.code = "invalid_json"
        raise error
    return found


def _file(one: Stored) -> dict[str, Any]:
    return {
        "id": one.id, "object": "file", "bytes": one.size, "created_at": one.at_us // 1_000_000, "filename": one.name,
        "purpose": one.purpose, "status": "processed",
    }  # fmt: skip


def _listed(rows: list[dict[str, Any]], query: str) -> dict[str, Any]:
    """A page; `after` and `limit` as OpenAI has them."""
    asked = parse_qs(query)
    limit = asked.get("limit", ["20"])[0]
    most = min(max(int(limit), 1), 100) if limit.isascii() and limit.isdigit() and len(limit) < 6 else 20
    after = asked.get("after", [""])[0]
    start = next((n for n, row in enumerate(rows, 1) if row["id"] == after), 0)
    page = rows[start : start + most]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, "has_more": len(rows) > start + most, **ends}
