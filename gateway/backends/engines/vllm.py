"""vLLM: Prometheus text; lower priorities go first, and one that is sent to a server without them is an error."""
from __future__ import annotations

import re

from gateway.backends.engines.figures import Bodies, Engine, Headers, Intent, Sample
from gateway.backends.engines.prometheus import parse

_PARTS = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc", "prompt_tokens",
    "prefix_cache_queries", "prefix_cache_hits", "gpu_prefix_cache_queries", "gpu_prefix_cache_hits", "num_preemptions",
    "admission_rejections", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "num_waiting_tokens",
)  # fmt: skip
_NOT_IN_SALT = re.compile(r"[@/\\\x00]")
_MOST_SALT = 128


def read(prefix: str, text: bytes | None) -> Sample:
    """Figures under vLLM's names after a prefix; those of versions before 0.9 count where the new ones are missing."""
    found = parse(text, [prefix + part for part in _PARTS])
    return Sample(
        running=found.count(f"{prefix}num_requests_running"),
        waiting=found.count(f"{prefix}num_requests_waiting"),
        waiting_tokens=found.count(f"{prefix}num_waiting_tokens"),
        kv_used=found.mean(f"{prefix}kv_cache_usage_perc", f"{prefix}gpu_cache_usage_perc"),
        prompt_tokens_total=found.total(f"{prefix}prefix_cache_queries", f"{prefix}gpu_prefix_cache_queries"),
        cached_tokens_total=found.total(f"{prefix}prefix_cache_hits", f"{prefix}gpu_prefix_cache_hits"),
        preempted_total=found.total(f"{prefix}num_preemptions"),
        refused_total=found.total(f"{prefix}admission_rejections"),
        drafted_total=found.total(f"{prefix}spec_decode_num_draft_tokens"),
        accepted_total=found.total(f"{prefix}spec_decode_num_accepted_tokens"),
    )


def clean_salt(salt: str) -> str:
    """vLLM takes 1 to 128 characters, none of @ / \\ NUL."""
    return _NOT_IN_SALT.sub("_", salt)[:_MOST_SALT]


def lower_first(urgency: float) -> int:
    """Urgent is -50, indifferent 0, nobody waits 50."""
    return round(50 - 100 * urgency)


def _read(bodies: Bodies) -> Sample:
    return read("vllm:", bodies.get("/metrics"))


def _headers(intent: Intent) -> Headers:
    return [(b"x-session-id", intent.session.encode("ascii", "ignore")[:128])] if intent.session else []


VLLM = Engine(
    name="vllm", paths=("/metrics",), read=_read, salt_field="cache_salt", clean_salt=clean_salt, priority=lower_first,
    headers=_headers, events="zmq",
    flags={
        "cached_tokens": "--enable-prompt-tokens-details",
        "priority": "--scheduling-policy priority",
        "kv_events": '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", '
        '"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}\'',
        "refusal": "--max-num-queued-reqs N",
    },
)  # fmt: skip
