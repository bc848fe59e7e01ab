"""A gateway with a queue, before a provider with live lanes and a batch API."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.batches.provider import Provider
from tests.build import PLAIN, PRICES, Gateway
from tests.ledger.conftest import postgres_url
from tests.upstream import PATIENCE_S, until

__all__ = ["postgres_url"]
BATCH_PRICES = PRICES.replace("rows = [", 'rows = [\n  {model = "m-*", tier = "batch", input = "1", cached = "0.25", output = "5"},\n  {model = "m-*", tier = "flex", input = "1", cached = "0.25", output = "5"},', 1)
QUEUE = {"collect_s": 0, "poll_s": 0.1, "max_calls": 50, "max_mib": 4}


def config(provider: Provider, **more: Any) -> dict[str, Any]:
    """`live` has flex and standard lanes; `openai` and `claude` have a batch lane each, for models of their own."""
    common = {"url": provider.url, "key": "env:PROVIDER_KEY", "provider": "test", "connect_timeout_ms": 60_000}
    batch = {"batch": {"offline": True}}
    return {
        "backends": {
            "live": {**common, "dialect": "openai", "models": ["m-live", "m-oai"], "lanes": {"standard": {}, "flex": {"service_tier": "flex"}}},
            "openai": {**common, "dialect": "openai", "models": ["m-oai", "m-off"], "lanes": batch, "fields": []},
            "claude": {**common, "dialect": "anthropic", "models": ["m-claude"], "lanes": batch, "fields": []},
        },
        "queue": QUEUE,
        **more,
    }  # fmt: skip


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


@pytest.fixture
def start(provider: Provider, tmp_path: Path) -> Callable[..., Gateway]:
    """Starts a gateway on the same folder, again and again; policies by keyword."""

    def started(policies: dict[str, Any] | None = None, **queue: Any) -> Gateway:
        files = config(provider, queue={**QUEUE, **queue})
        return Gateway(tmp_path, files, policies or {"plain": PLAIN, "other": PLAIN}, BATCH_PRICES)

    return started


def line(n: int, model: str, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": f"question {n}"}], **body}
    return {"custom_id": f"c{n}", "method": "POST", "url": url, "body": body}


def upload(gateway: Gateway, rows: list[Any] | bytes, team: str = "plain") -> httpx.Response:
    content = rows if isinstance(rows, bytes) else b"\n".join(json.dumps(row).encode() for row in rows)
    files = {"file": ("calls.jsonl", content, "application/jsonl")}
    return gateway.ask("POST", "/v1/files", gateway.key(team), data={"purpose": "batch"}, files=files)


def create(gateway: Gateway, rows: list[Any], window: str = "24h", team: str = "plain", **request: Any) -> dict[str, Any]:
    """A batch with these lines."""
    file = upload(gateway, rows, team).json()["id"]
    asked = {"input_file_id": file, "endpoint": rows[0]["url"], "completion_window": window, "metadata": {"job": "nightly"}}
    answer = gateway.ask("POST", "/v1/batches", gateway.key(team), json=asked, **request)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def look(gateway: Gateway, id: str, team: str = "plain") -> dict[str, Any]:
    found: dict[str, Any] = gateway.ask("GET", f"/v1/batches/{id}", gateway.key(team)).json()
    return found


def ended(gateway: Gateway, id: str, team: str = "plain") -> dict[str, Any]:
    """The batch, once it is over."""

    def over() -> Any:
        found = look(gateway, id, team)
        return found if found["status"] in ("completed", "expired", "cancelled") else None

    found: dict[str, Any] = until(over, f"batch {id} to end", 2 * PATIENCE_S)
    return found


def rows(gateway: Gateway, file: str | None) -> list[dict[str, Any]]:
    """Lines of an output or error file."""
    if file is None:
        return []
    content = gateway.ask("GET", f"/v1/files/{file}/content", gateway.key()).content
    return [json.loads(text) for text in content.splitlines()]
