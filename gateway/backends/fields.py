"""Which fields of a request an engine of one's own gets: those of a list, by exact name, and what the operator adds (`fields`).

A provider takes anybody's requests, so to it unknown fields travel. An engine takes ours: a field can name a machine that it
should fetch a cache from (`kv_transfer_params`, `bootstrap_host`), code or weights to load (`custom_logit_processor`,
`lora_request`), a place in its queue (`priority`), or a limit that nothing was held for (`Max_Tokens`, `n_predict`). Such
fields are taken out, and the answer and the ledger name them.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.dialects.splice import Spans
from gateway.settings_file import BackendSettings

Known = Mapping[str, frozenset[str]]
"""Client's dialect -> names of the fields that travel."""

_MOST_CHARS = 1_000
_PROMPT_CACHE = frozenset({"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"})
_OPENAI = _PROMPT_CACHE | {
    "metadata", "model", "moderation", "parallel_tool_calls", "safety_identifier", "service_tier", "store", "stream",
    "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user",
}
APIS: Known = {
    "openai_chat": _OPENAI | {
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
        "max_tokens", "messages", "modalities", "n", "prediction", "presence_penalty", "reasoning_effort", "response_format",
        "seed", "stop", "verbosity", "web_search_options",
    },
    "openai_responses": _OPENAI | {
        "access_programs", "background", "background_options", "context_management", "conversation", "image", "include",
        "input", "instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "reasoning", "text",
        "truncation",
    },
    "openai_embeddings": frozenset({"dimensions", "encoding_format", "input", "model", "user"}),
    "anthropic_messages": frozenset({
        "billing_policy", "cache_control", "compaction", "container", "context_management", "diagnostics",
        "fallback_credit_token", "fallbacks", "inference_geo", "max_tokens", "messages", "metadata", "model", "output_config",
        "output_format", "service_tier", "speed", "stop_sequences", "stream", "system", "temperature", "thinking", "thread",
        "tool_choice", "tools", "top_k", "top_p", "user_profile_id", "workspace_id",
    }),
}  # fmt: skip
"""What each API documents, but for `mcp_servers` and `prompt`, which may name addresses that nobody has looked at."""
_SAMPLING = frozenset({
    "allowed_token_ids", "bad_words", "early_stopping", "frequency_penalty", "ignore_eos", "length_penalty", "logit_bias",
    "min_p", "min_tokens", "presence_penalty", "repetition_detection", "repetition_penalty", "seed", "stop", "stop_token_ids",
    "top_k", "top_p_min", "use_beam_search",
    # llama.cpp
    "dry_allowed_length", "dry_base", "dry_multiplier", "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent",
    "dynatemp_range", "min_keep", "mirostat", "mirostat_eta", "mirostat_tau", "repeat_last_n", "repeat_penalty", "samplers",
    "top_n_sigma", "typical_p", "xtc_probability", "xtc_threshold",
})  # fmt: skip
_SHAPE = frozenset({
    "ebnf", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "guided_whitespace_pattern",
    "json_schema", "regex", "structural_tag", "structured_outputs",
})
"""What the output has to look like."""
_TEMPLATE = frozenset({
    "add_generation_prompt", "add_special_tokens", "chat_template_kwargs", "continue_final_message", "documents", "echo",
    "enable_thinking", "include_reasoning", "reasoning", "reasoning_effort", "reasoning_format",
    "separate_reasoning", "stream_reasoning", "thinking", "thinking_token_budget", "truncate_prompt_tokens", "truncation_side",
})  # fmt: skip
"""How the prompt is rendered and the reasoning told; a template of the client's own is not among them."""
_TELLING = frozenset({
    "cache_prompt", "cache_salt", "include_stop_str_in_output", "n_probs", "no_stop_trim", "parse_tool_calls",
    "post_sampling_probs", "prompt_logprobs", "return_progress", "return_prompt_text", "return_token_ids",
    "return_tokens_as_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "timings_per_token",
})
_ENGINES = _SAMPLING | _SHAPE | _TEMPLATE | _TELLING
"""What vLLM, SGLang, TensorRT-LLM, llama.cpp and the embedded engine take beside the API's and what harms nobody."""
_FOR_EMBEDDINGS = frozenset({"add_special_tokens", "embed_dtype", "endianness", "normalize", "truncate_prompt_tokens"})

_POORER = frozenset({"anthropic_messages", "openai_responses"})
"""Dialects without a word for `seed`, which promises no answer where there is one, and for names of the speakers in a chat:
calls go without them, and are told so."""
NAMES = "messages[].name"


class _Spoken(msgspec.Struct):
    role: Any = None
    name: Any = None


_spoken = msgspec.json.Decoder(list[_Spoken]).decode

KNOWN: Known = {
    name: fields | (_FOR_EMBEDDINGS if name == "openai_embeddings" else _ENGINES) for name, fields in APIS.items()
}


def known(backend: BackendSettings) -> Known | None:
    """What travels to a backend; None: everything, as to providers and to proxies in front of them. Own is what names its
    engine: an address inside the network says nothing, since providers are reached by such too."""
    if backend.fields == "pass":
        return None
    if backend.fields is None:
        return None if backend.engine is None else KNOWN
    more = frozenset(backend.fields)
    return {name: fields | more for name, fields in KNOWN.items()}


def left_out(fields: Known | None, client: str, upstream: str, body: bytes, spans: Spans) -> list[str]:
    """Which of a body's top-level fields do not travel from one dialect to another, most often the same; names of speakers
    too, as `NAMES`."""
    lost = [] if client == upstream or upstream not in _POORER else _unsaid(client, body, spans)
    if fields is None or fields[client].issuperset(spans):
        return lost
    return lost + [name for name in spans if name not in fields[client] and name not in fields[upstream]]


def _unsaid(client: str, body: bytes, spans: Spans) -> list[str]:
    lost = [name for name in spans if name == "seed"]
    if client == "openai_chat" and (place := spans.get("messages")) is not None and b'"name"' in body:
        with contextlib.suppress(msgspec.MsgspecError):     # what is no list of messages is refused in translation
            named = [one for one in _spoken(body[slice(*place)]) if one.name and one.role != "tool"]
            return [*lost, NAMES] if named else lost
    return lost


def told(left: Iterable[str]) -> str:
    """What was left out, printable and within bounds, for a header and a receipt."""
    return "".join([each if " " <= each <= "~" else "?" for each in ", ".join(left)[:_MOST_CHARS]])


def receipt(left: Iterable[str]) -> Mapping[str, str]:
    """For the entry of an attempt that left something out."""
    return {"pass": "known_fields", "place": told(left), "dropped": "the backend does not get these fields"}
