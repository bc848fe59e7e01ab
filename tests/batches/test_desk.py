"""`/v1/files` and `/v1/batches` as clients see them."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.batches.conftest import config, create, ended, line, look, rows, upload
from tests.batches.provider import Provider
from tests.build import PLAIN, Gateway, backend
from tests.upstream import Upstream, whole

NEVER = {**PLAIN, "classes": {"batch": {"wait": {"hours": "0-0"}}}}


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose batches never start."""
    with Provider() as provider, Gateway(tmp_path_factory.mktemp("q"), config(provider), {"plain": NEVER, "other": NEVER}) as gateway:
        yield gateway


def test_the_official_client_does_a_batch(start: Callable[..., Gateway]) -> None:
    """Upload, create, retrieve, list, content, delete: all in its own types."""
    with start() as gateway, httpx.Client(verify=False, trust_env=False) as http:
        client = openai.OpenAI(api_key=gateway.key(), base_url=gateway.url + "/v1", http_client=http, max_retries=0)
        content = b"\n".join(json.dumps(line(n, "m-live")).encode() for n in range(2))
        file = client.files.create(file=("x.jsonl", content), purpose="batch")
        assert (file.bytes, file.filename, client.files.content(file.id).read()) == (len(content), "x.jsonl", content)
        made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"})
        ended(gateway, made.id)
        batch = client.batches.retrieve(made.id)
        assert (batch.status, batch.request_counts and batch.request_counts.completed, batch.metadata) == ("completed", 2, {"a": "b"})
        assert [one.id for one in client.batches.list(limit=5)] == [made.id]
        assert batch.output_file_id is not None
        assert len(client.files.content(batch.output_file_id).text.splitlines()) == 2
        assert {one.id for one in client.files.list()} == {file.id, batch.output_file_id}
        assert client.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(file.id)


@pytest.mark.parametrize(("content", "says"), [
    (b"", "has no calls"), (b"\n\n", "has no calls"), (b"{", "line 1: is not JSON"), (b"[]", "line 1: is not an object"),
    (json.dumps({**line(1, "m-live"), "custom_id": 7}).encode(), "line 1: custom_id"),
    (b"\n".join([json.dumps(line(1, "m-live")).encode()] * 2), "line 2: custom_id stands on an earlier line"),
    (json.dumps({**line(1, "m-live"), "url": "/v1/embeddings"}).encode(), "line 1: must be a POST to the batch's endpoint"),
    (json.dumps({**line(1, "m-live"), "body": {"messages": []}}).encode(), "line 1: body must be an object with a model"),
    (json.dumps(line(1, "m-live", stream=True)).encode(), "line 1: nobody reads a stream"),
])  # fmt: skip
def test_a_bad_file_is_told_with_its_lines(waiting: Gateway, content: bytes, says: str) -> None:
    """Before anything waits."""
    file = upload(waiting, content).json()["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    answer = waiting.ask("POST", "/v1/batches", waiting.key(), json=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_file_id")
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize(("change", "param"), [
    ({"endpoint": "/v1/images"}, "endpoint"), ({"endpoint": []}, "endpoint"), ({"endpoint": {}}, "endpoint"), ({"completion_window": {}}, "completion_window"),
    ({"input_file_id": {}}, "input_file_id"), ({"metadata": [[]]}, "metadata"), ({"completion_window": "soon"}, "completion_window"),
    ({"completion_window": "0h"}, "completion_window"), ({"completion_window": 24}, "completion_window"),
    ({"input_file_id": "file-twx"}, "input_file_id"), ({"input_file_id": None}, "input_file_id"), ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": [1]}, "metadata"),
])  # fmt: skip
def test_a_bad_batch_names_its_field(waiting: Gateway, change: dict[str, Any], param: str) -> None:
    """In OpenAI's shape."""
    file = upload(waiting, [line(1, "m-live")]).json()["id"]
    asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h", **change}
    answer = waiting.ask("POST", "/v1/batches", waiting.key(), json=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("method", "path", "request_", "status"), [
    ("POST", "/v1/batches", {"content": b"{"}, 400), ("POST", "/v1/files", {"content": b"x"}, 400),
    ("POST", "/v1/files", {"files": {"other": b"x"}, "data": {"purpose": "batch"}}, 400), ("PUT", "/v1/batches", {}, 405),
    ("GET", "/v1/batches/batch_twnone", {}, 404), ("GET", "/v1/files/file-twnone/content", {}, 404),
    ("POST", "/v1/batches/batch_twnone/cancel", {}, 404), ("DELETE", "/v1/files/file-twnone", {}, 404),
])  # fmt: skip
def test_what_cannot_be_done_is_told(waiting: Gateway, method: str, path: str, request_: dict[str, Any], status: int) -> None:
    """With the right status and words."""
    answer = waiting.ask(method, path, waiting.key(), **request_)
    assert (answer.status_code, bool(answer.json()["error"]["message"])) == (status, True)


def test_teams_see_their_own(waiting: Gateway) -> None:
    """Files and batches of others are not there."""
    batch = create(waiting, [line(1, "m-live")])
    other = waiting.key("other")
    assert waiting.ask("GET", f"/v1/batches/{batch['id']}", other).status_code == 404
    assert waiting.ask("POST", f"/v1/batches/{batch['id']}/cancel", other).status_code == 404
    assert waiting.ask("GET", f"/v1/files/{batch['input_file_id']}/content", other).status_code == 404
    assert waiting.ask("GET", "/v1/batches", other).json()["data"] == []
    assert look(waiting, batch["id"])["status"] == "in_progress"


def test_the_queue_is_bounded(start: Callable[..., Gateway]) -> None:
    """By calls and by bytes: 429, and nothing of it is kept."""
    with start({"plain": NEVER}, max_calls=3, max_mib=1) as gateway:
        create(gateway, [line(n, "m-live") for n in range(2)])
        file = upload(gateway, [line(n, "m-live") for n in range(2)]).json()["id"]
        asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        answer = gateway.ask("POST", "/v1/batches", gateway.key(), json=asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert len(gateway.ask("GET", "/v1/batches", gateway.key()).json()["data"]) == 1
        assert upload(gateway, b"x" * (1 << 20)).json()["error"]["code"] == "queue_full"


def test_other_purposes_and_ids_are_passed_on(upstream: Upstream, tmp_path: Path) -> None:
    """As before there was a queue."""
    site = upstream.site(tmp_path.name)
    site.says(whole({"id": "file-abc", "object": "file"}))
    with Gateway(tmp_path, {"backends": {"b": backend(site, speaks=["chat", "files"])}, "queue": {}}, {"plain": PLAIN}) as gateway:
        answer = gateway.ask("POST", "/v1/files", gateway.key(), data={"purpose": "assistants"}, files={"file": ("a", b"1")})
        assert (answer.status_code, answer.json()["id"]) == (200, "file-abc")
        assert gateway.ask("GET", "/v1/files/file-abc", gateway.key()).json()["id"] == "file-abc"
    assert [request.method for request in site.requests] == ["POST", "GET"]


def test_an_answer_that_is_not_200_is_in_the_error_file(start: Callable[..., Gateway], provider: Provider) -> None:
    """With its status and body; a model that is not there is no secret."""
    with start() as gateway:
        over = ended(gateway, create(gateway, [line(1, "m-none"), line(2, "m-live")])["id"])
        assert over["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        [bad] = rows(gateway, over["error_file_id"])
        assert (bad["custom_id"], bad["response"]["status_code"]) == ("c1", 404)
