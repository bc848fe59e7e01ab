"""A vector as a client would ask and as its provider would answer, on the wire."""
from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from tests.upstream import End, Reply, stream, whole

Vector = Mapping[str, Any]
DIALECTS = {
    "chat_completions": ("chat", "/v1/chat/completions"), "responses": ("responses", "/v1/responses"),
    "embeddings": ("embeddings", "/v1/embeddings"), "messages": ("messages", "/v1/messages"),
}
"""APIs that are dialects of ours: their name in `speaks`, and the path. All others go through a configured path."""
_SAYS = "Say something."
_DESCRIBES = ("cache_control", "cache_control_ttls", "cache_ttls")
"""Members of a vector's request that describe it and are no fields."""
_EVENTSTREAM = "application/vnd.amazon.eventstream"


def backend(vector: Vector, url: str, alias: str) -> dict[str, Any]:
    """Its provider as a backend in `tollway.yaml`."""
    api, _ = DIALECTS.get(vector["api"], (None, ""))
    common = {
        "url": url, "key": "env:PROVIDER_KEY", "provider": vector["provider"], "region": _context(vector).get("region"),
        "lanes": {"standard": {"batch": bool(_context(vector).get("batch"))}},
    }
    if api is None:
        return {**common, "dialect": "other"}
    dialect = "anthropic" if api == "messages" else "openai"
    return {**common, "dialect": dialect, "speaks": [api], "models": {alias: vector["model"]}}


def path(vector: Vector, alias: str) -> str:
    """Where a client sends it."""
    if vector["api"] in DIALECTS:
        return DIALECTS[vector["api"]][1]
    if vector["api"] == "generate_content":
        return f"/{alias}/v1beta/models/{vector['model']}:" + ("streamGenerateContent?alt=sse" if vector["stream"] else "generateContent")
    if vector["api"] == "converse":
        return f"/{alias}/model/{vector['model']}/converse" + ("-stream" if vector["stream"] else "")
    return f"/{alias}/v1beta/{vector['api']}"


def body(vector: Vector, alias: str) -> dict[str, Any]:
    """What a client sends: the vector's own fields around a prompt, cache markers where it says there were some."""
    asked = vector.get("request") or {}
    fields = {name: value for name, value in asked.items() if name not in _DESCRIBES}
    if vector["api"] not in DIALECTS:
        return {**({} if vector["api"] in ("generate_content", "converse") else {"model": vector["model"]}), **fields}
    ttls = asked.get("cache_control_ttls") or asked.get("cache_ttls") or ([None] if "cache_control" in asked else [])
    markers = [{"type": "ephemeral", **({"ttl": ttl} if ttl else {})} for ttl in ttls]
    parts = [{"type": "text", "text": _SAYS, "cache_control": marker} for marker in markers] or _SAYS
    if vector["api"] in ("responses", "embeddings"):
        return {"model": alias, "input": _SAYS, **({"stream": True} if vector["stream"] else {}), **fields}
    limit = {"max_tokens": 64} if vector["api"] == "messages" else {}
    return {"model": alias, "messages": [{"role": "user", "content": parts}], "stream": vector["stream"], **limit, **fields}


def reply(vector: Vector) -> Reply:
    """What the provider says; where its answer was cut, the connection breaks."""
    headers = {"content-type": "application/json", **(_context(vector).get("headers") or {})}
    if not vector["stream"]:
        answer = whole(vector["payload"])
        return Reply(headers=tuple(headers.items()), steps=answer.steps)
    documents = vector["payload"]
    if vector["api"] == "converse":
        return stream(*(_amazon(kind, content) for each in documents for kind, content in each.items()), **{"content-type": _EVENTSTREAM})
    steps = [_event(document) for document in documents]
    if vector["api"] == "chat_completions" and _finished(documents):
        steps.append(b"data: [DONE]\n\n")
    return stream(*steps, *([] if _whole(vector) else [End.CUT]), **{**headers, "content-type": "text/event-stream"})


def _context(vector: Vector) -> Mapping[str, Any]:
    """What the gateway knows from outside the body."""
    return vector.get("context") or {}


def _event(document: Mapping[str, Any]) -> bytes:
    name = f"event: {document['type']}\n" if isinstance(document.get("type"), str) else ""
    return f"{name}data: {json.dumps(document)}\n\n".encode()


def _amazon(kind: str, document: Any) -> bytes:
    payload, name = json.dumps(document).encode(), b":event-type"
    headers = bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(kind)) + kind.encode()
    return struct.pack(">III", 16 + len(headers) + len(payload), len(headers), 0) + headers + payload + bytes(4)


def _finished(documents: list[Mapping[str, Any]]) -> bool:
    return any(choice.get("finish_reason") for each in documents for choice in each.get("choices") or ())


def _whole(vector: Vector) -> bool:
    expected, last = vector["expected"], vector["payload"][-1]
    if expected is None:
        return str(last.get("type")).startswith("response.") or _finished(vector["payload"])
    return bool(expected.get("complete", True))
