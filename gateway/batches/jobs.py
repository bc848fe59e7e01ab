"""The providers' own batch APIs: hand over, ask how it goes, fetch, cancel. OpenAI's by files, Anthropic's by one request.

A job's answers come as (custom id, HTTP status, body); what the provider did not do (expired, cancelled) is left out.
"""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import orjson

from gateway.backends.fleet import Target
from gateway.backends.http import Stop
from gateway.backends.upstream import Upstream, read
from gateway.core.errors import UpstreamError

State = Literal["running", "ended", "failed"]
_ENDED = frozenset({"completed", "expired", "cancelled"})
_KIND = b"application/json"
_LINE = b'{"custom_id":%s,"method":"POST","url":%s,"body":%s}\n'
_FILE = b'Content-Disposition: form-data; name="file"; filename="batch.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n'


class Progress(NamedTuple):
    """How a provider's batch stands, and where its answers are."""

    state: State
    places: tuple[str, ...] = ()
    why: str = ""


class ProviderBatches:
    """Speaks with one backend after the other. All methods raise `GatewayError` where it cannot be reached or says no."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def send(self, target: Target, path: str, calls: Sequence[tuple[str, bytes]]) -> str:
        """Hands calls (custom id, body) over; gives the batch's id at the provider. `path`: the calls' own, at the provider."""
        if target.dialect == "anthropic_messages":
            rows = b",".join(b'{"custom_id":%s,"params":%s}' % (orjson.dumps(id), body) for id, body in calls)
            made = await self._json(target, "POST", "/messages/batches", b'{"requests":[' + rows + b"]}")
            return str(made["id"])
        boundary, url = os.urandom(16).hex().encode(), orjson.dumps(path)
        form = _form(boundary, b"".join([_LINE % (orjson.dumps(id), url, body) for id, body in calls]))
        file = await self._json(target, "POST", "/files", form, b"multipart/form-data; boundary=" + boundary)
        asked = {"input_file_id": file["id"], "endpoint": path, "completion_window": "24h"}
        return str((await self._json(target, "POST", "/batches", orjson.dumps(asked)))["id"])

    async def look(self, target: Target, id: str) -> Progress:
        if target.dialect == "anthropic_messages":
            found = await self._json(target, "GET", f"/messages/batches/{id}")
            ended = found.get("processing_status") == "ended"
            return Progress("ended", (f"/messages/batches/{id}/results",)) if ended else Progress("running")
        found = await self._json(target, "GET", f"/batches/{id}")
        if found.get("status") == "failed":
            said = ((found.get("errors") or {}).get("data") or [{}])[0].get("message")
            return Progress("failed", why=str(said or "the provider says only that it failed")[:300])
        files = [found.get(name) for name in ("output_file_id", "error_file_id")]
        places = tuple(f"/files/{file}/content" for file in files if file)
        return Progress("ended", places) if found.get("status") in _ENDED else Progress("running")

    async def answers(self, target: Target, progress: Progress) -> list[tuple[str, int, bytes]]:
        found = []
        for place in progress.places:
            found += list(_answers(await self._bytes(target, "GET", place)))
        return found

    async def cancel(self, target: Target, id: str) -> None:
        where = "/messages/batches" if target.dialect == "anthropic_messages" else "/batches"
        await self._json(target, "POST", f"{where}/{id}/cancel")

    async def _json(
        self, target: Target, method: str, path: str, body: bytes = b"", kind: bytes = _KIND
    ) -> dict[str, Any]:
        try:
            found = orjson.loads(await self._bytes(target, method, path, body, kind))
        except orjson.JSONDecodeError as error:
            raise UpstreamError("the provider's batch API does not answer in JSON") from error
        if not isinstance(found, dict):
            raise UpstreamError("the provider's batch API answers with something else than an object")
        return found

    async def _bytes(self, target: Target, method: str, path: str, body: bytes = b"", kind: bytes = _KIND) -> bytes:
        headers = [(b"accept-encoding", b"identity"), *target.headers]
        if body:
            headers.append((b"content-type", kind))
        if target.dialect == "anthropic_messages" and not any(name == b"anthropic-version" for name, _ in headers):
            headers.append((b"anthropic-version", b"2023-06-01"))
        stop = Stop()
        response = await self._upstream.send(target.at(path), body, headers, stop, method)
        try:
            data = await read(response, stop)
        finally:
            await response.aclose()
        if response.status >= 300:
            raise Refused(f"the provider's batch API answered {response.status}")
        return data


class Refused(UpstreamError):
    """The provider takes no batch, or not this one."""


def _form(boundary: bytes, content: bytes) -> bytes:
    head = b'--%s\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' % boundary
    return head + b"--%s\r\n" % boundary + _FILE + content + b"\r\n--%s--\r\n" % boundary


def _answers(content: bytes) -> Iterator[tuple[str, int, bytes]]:
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(row, dict) and isinstance(row.get("custom_id"), str) and (found := _answer(row)) is not None:
            yield row["custom_id"], *found


def _answer(row: dict[str, Any]) -> tuple[int, bytes] | None:
    said = row.get("result")
    if isinstance(said, dict):
        if said.get("type") == "succeeded":
            return 200, orjson.dumps(said.get("message"))
        return (400, orjson.dumps(said.get("error"))) if said.get("type") == "errored" else None
    response = row.get("response")
    if not isinstance(response, dict) or not isinstance(response.get("status_code"), int):
        return None
    return response["status_code"], orjson.dumps(response.get("body"))
