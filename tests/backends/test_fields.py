"""An engine of one's own gets the fields of a list, and nothing that steers it."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic.types.beta.message_create_params as beta
import anthropic.types.message_count_tokens_params as counted
import anthropic.types.message_create_params as messages
import openai.types.chat.completion_create_params as chat
import openai.types.embedding_create_params as embeddings
import openai.types.responses.response_create_params as responses
import pytest

from gateway import dialects
from gateway.backends.fields import APIS, KNOWN, NAMES, known, receipt, told
from gateway.backends.fleet import Fleet, Target
from gateway.serve import embedded
from gateway.settings import load
from router_policies.strict_yaml import BadFile
from router_policies.types import Rates

INSIDE, OUTSIDE = "http://vllm.models.svc:8000/v1", "https://api.example/v1"


def target(folder: Path, client: str = "openai_chat", **backend: Any) -> Target:
    path = folder / "tollway.yaml"
    path.write_text(json.dumps({"backends": {"b": {"dialect": "openai", "url": INSIDE, "models": ["m"], **backend}}}))
    return Fleet(load(path, {}), lambda provider, model, tier: Rates()).road("b/standard", client)


@pytest.mark.parametrize(("dialect", "params"), [
    ("openai_chat", chat.CompletionCreateParamsStreaming), ("openai_responses", responses.ResponseCreateParamsStreaming),
    ("openai_embeddings", embeddings.EmbeddingCreateParams), ("anthropic_messages", messages.MessageCreateParamsStreaming),
    ("anthropic_messages", beta.MessageCreateParamsStreaming), ("anthropic_messages", counted.MessageCountTokensParams),
])  # fmt: skip
def test_what_the_providers_libraries_can_say_is_known(dialect: str, params: Any) -> None:
    """All of it but tool servers and the variables of stored prompts, which name addresses; `betas` is a header."""
    said = set(params.__required_keys__ | params.__optional_keys__)
    assert said > {"model"}
    assert said - APIS[dialect] <= {"mcp_servers", "prompt", "betas"}


@pytest.mark.parametrize("name", [
    "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "request_id", "priority", "chat_template", "mm_processor_kwargs",
    "media_io_kwargs", "logits_processors", "guided_decoding_backend", "previous_input_messages", "data_parallel_rank",
    "custom_logit_processor", "custom_params", "lora_path", "session_params", "rid", "extra_key", "bootstrap_host",
    "bootstrap_port", "bootstrap_room", "return_hidden_states", "stop_regex", "disaggregated_params", "lora_request", "lora",
    "id_slot", "n_predict", "best_of", "mcp", "mcp_servers", "prompt", "Max_Tokens", "MODEL", "max_tokens ", "", "tomorrow",
    "extra_body",
])  # fmt: skip
@pytest.mark.parametrize("dialect", sorted(KNOWN))
def test_what_steers_an_engine_does_not_travel(tmp_path: Path, dialect: str, name: str) -> None:
    """Addresses, code, weights, templates, places in its queue or cache, limits that nothing is held for, other spellings."""
    wire = "anthropic" if dialect == "anthropic_messages" else "openai"
    assert target(tmp_path, dialect, dialect=wire, speaks=[_API[dialect]], fields=[]).left_out(dialect, b"", dict.fromkeys(["model", name], (0, 0))) == [name]


_API = {"openai_chat": "chat", "openai_responses": "responses", "openai_embeddings": "embeddings", "anthropic_messages": "messages"}


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic_messages"])
def test_what_only_shapes_the_answer_travels(dialect: str) -> None:
    """The words of vLLM, SGLang, TensorRT-LLM and llama.cpp for sampling, output and template values."""
    assert KNOWN[dialect] >= {
        "top_k", "min_p", "repetition_penalty", "repeat_penalty", "stop_token_ids", "ignore_eos", "min_tokens", "seed",
        "guided_json", "guided_regex", "structured_outputs", "regex", "ebnf", "grammar", "json_schema",
        "chat_template_kwargs", "continue_final_message", "separate_reasoning", "skip_special_tokens", "cache_salt",
    }


@pytest.mark.parametrize(("backend", "left"), [
    ({}, []),
    ({"url": "http://127.0.0.1:8000/v1"}, []),
    ({"url": OUTSIDE}, []),
    ({"url": OUTSIDE, "engine": "vllm"}, ["mcp"]),
    ({"url": OUTSIDE, "fields": []}, ["mcp"]),
    ({"fields": "pass", "engine": "sglang"}, []),
    ({"engine": "vllm", "fields": ["mcp"]}, []),
    ({"fields": ["mm_processor_kwargs"]}, ["mcp"]),
])  # fmt: skip
def test_whom_the_list_is_for(tmp_path: Path, backend: dict[str, Any], left: list[str]) -> None:
    """What names its engine, unless the settings say otherwise; they may name more fields. A provider may be reached by an inner address."""
    assert target(tmp_path, **backend).left_out("openai_chat", b"", dict.fromkeys(["model", "top_k", "mcp"], (0, 0))) == left


def test_the_embedded_engine_is_ones_own() -> None:
    assert known(embedded("http://127.0.0.1:9/v1")) == KNOWN


@pytest.mark.parametrize("wrong", ["some", [""], [1], {"mcp": True}])
def test_a_setting_that_means_nothing_is_an_error(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(BadFile, match="fields"):
        target(tmp_path, fields=wrong)


def _sent(to: Target, client: str, body: bytes, **set_fields: Any) -> bytes:
    sketch = dialects.read(client, body)
    left = to.left_out(client, body, sketch.spans)
    return dialects.request(
        client, to.dialect, body, sketch, model="m", set_fields={**dict.fromkeys(left), **set_fields}, ask_usage=False
    )


def test_they_are_taken_out_in_place(tmp_path: Path) -> None:
    """However they are spelt; what stays keeps its bytes; what the gateway says by that name is said."""
    to = target(tmp_path, fields=[])
    body = rb'{"kv\u005ftransfer_params": {"remote_host": "10.0.0.1"}, "model":"m" , "messages":[ ], "Max_Tokens":9, "priority":-9, "top_k": 1.0e1}'
    assert _sent(to, "openai_chat", body) == b'{"model":"m" , "messages":[ ], "top_k": 1.0e1}'
    assert json.loads(_sent(to, "openai_chat", body, priority=3))["priority"] == 3
    plain = b'{"model":"m",\n"messages":[]}'
    assert _sent(to, "openai_chat", plain) is plain


def test_a_translation_loses_them_too(tmp_path: Path) -> None:
    """And nothing that it says itself: a client's odd field may have the name of one of the other dialect's."""
    to = target(tmp_path, dialect="anthropic", fields=[])
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}
    sent = json.loads(_sent(to, "openai_chat", json.dumps({**body, "mcp_servers": [{"url": "http://10.0.0.1"}], "system": None}).encode()))
    assert "mcp_servers" not in sent
    assert "be brief" in json.dumps(sent["system"])


@pytest.mark.parametrize(("message", "left"), [
    ({"role": "user", "content": "hi", "name": "Bo"}, [NAMES]), ({"role": "assistant", "content": "hi", "name": "Al"}, [NAMES]),
    ({"role": "user", "content": 'my "name" is Bo'}, []), ({"role": "user", "content": "hi", "name": None}, []),
    ({"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "t", "arguments": "{}"}}]}, []),
    ({"role": "tool", "tool_call_id": "1", "name": "t", "content": "x"}, []), ("odd", []),
])  # fmt: skip
def test_names_of_speakers_are_told_where_there_are_none(tmp_path: Path, message: Any, left: list[str]) -> None:
    """To a dialect without them they do not go; what only looks like one is none."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}, message]}).encode()
    spans = dialects.read("openai_chat", body).spans
    assert target(tmp_path, dialect="anthropic", url=OUTSIDE).left_out("openai_chat", body, spans) == left
    assert target(tmp_path, url=OUTSIDE).left_out("openai_chat", body, spans) == []


def test_names_are_told_within_bounds() -> None:
    """They are a client's words: no control bytes get far, and no row grows with them."""
    assert told(["a", "ü\u2028\x1b[0m\r\n"]) == "a, ???[0m??"
    many = receipt(f"field-{n}" for n in range(10_000))
    assert len(many["place"]) == 1_000
