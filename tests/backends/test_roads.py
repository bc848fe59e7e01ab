"""What a backend speaks, and how each client's dialect reaches it."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.fleet import Fleet
from gateway.settings import SettingsError, load
from router_policies.strict_yaml import BadFile
from router_policies.types import Rates

CHAT, RESPONSES, MESSAGES, EMBEDDINGS = "openai_chat", "openai_responses", "anthropic_messages", "openai_embeddings"


def fleet(folder: Path, more: dict[str, Any] | None = None, **backend: Any) -> Fleet:
    path = folder / "tollway.yaml"
    fields = {"dialect": "openai", "url": "https://api.example/v1", "key": "env:K", "models": ["m"], **backend}
    path.write_text(json.dumps({"backends": {"b": fields}, **(more or {})}))
    return Fleet(load(path, {"K": "sk-1"}), lambda provider, model, tier: Rates())


@pytest.mark.parametrize(("backend", "roads"), [
    ({}, {CHAT: CHAT, RESPONSES: CHAT, MESSAGES: CHAT, EMBEDDINGS: EMBEDDINGS}),
    ({"url": "https://api.openai.com/v1"}, {CHAT: CHAT, RESPONSES: RESPONSES, MESSAGES: CHAT, EMBEDDINGS: EMBEDDINGS}),
    ({"speaks": ["responses"]}, {CHAT: RESPONSES, RESPONSES: RESPONSES, MESSAGES: RESPONSES}),
    ({"speaks": ["embeddings"]}, {EMBEDDINGS: EMBEDDINGS}), ({"speaks": ["files"]}, {}), ({"dialect": "other"}, {}),
    ({"dialect": "anthropic"}, {CHAT: MESSAGES, RESPONSES: MESSAGES, MESSAGES: MESSAGES}),
])
def test_the_clients_own_dialect_where_it_is_spoken_else_a_translation(tmp_path: Path, backend: dict[str, Any], roads: dict[str, str]) -> None:
    """Chat is the first choice to translate to; embeddings are never translated; what nobody can say has no lane."""
    ours = fleet(tmp_path, **backend)
    for dialect in (CHAT, RESPONSES, MESSAGES, EMBEDDINGS):
        lanes = ours.lanes(dialect)
        assert bool(lanes) is (dialect in roads)
        if lanes:
            assert ours.road("b/standard", dialect).dialect == roads[dialect]


def test_addresses_and_credentials(tmp_path: Path) -> None:
    """Each dialect has its path under the backend's address; the key stands where the backend looks for it."""
    ours = fleet(tmp_path, speaks=["chat", "responses"])
    assert ours.road("b/standard", RESPONSES).address.url == "https://api.example/v1/responses"
    assert ours.road("b/standard", MESSAGES).address.url == "https://api.example/v1/chat/completions"
    assert ours.road("b/standard", CHAT).headers == ((b"authorization", b"Bearer sk-1"),)
    assert ours.targets["b/standard"].at("/files?limit=1").address.url == "https://api.example/v1/files?limit=1"
    google = fleet(tmp_path, dialect="other", models=[], key_header="x-goog-api-key")
    assert google.targets["b/standard"].headers == ((b"x-goog-api-key", b"sk-1"),)


@pytest.mark.parametrize(("more", "backend", "words"), [
    ({}, {"speaks": ["messages"]}, "messages is not an API of the dialect openai"), ({}, {"dialect": "anthropic", "speaks": ["chat"]}, "chat is not an API of the dialect anthropic"),
    ({}, {"dialect": "other", "speaks": ["chat"]}, "chat is not an API of the dialect other"), ({}, {"models": []}, "name at least one model"), ({}, {"speaks": ["caht"]}, "chat"),
    ({"passthrough": {"/v1/x": "b"}}, {}, "path of its own"), ({"passthrough": {"x": "b"}}, {}, "path of its own"), ({"passthrough": {"/x/": "b"}}, {}, "path of its own"),
    ({"passthrough": {"/x": "nobody"}}, {}, "no backend 'nobody'"),
])
def test_what_does_not_fit_is_told_at_the_start(tmp_path: Path, more: dict[str, Any], backend: dict[str, Any], words: str) -> None:
    """With the place and the reason."""
    with pytest.raises((BadFile, SettingsError), match=words):
        fleet(tmp_path, more, **backend)
