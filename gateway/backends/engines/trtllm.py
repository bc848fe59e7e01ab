"""TensorRT-LLM: Prometheus text under `/prometheus/metrics` (`/metrics` is a queue that each read empties)."""
from __future__ import annotations

from gateway.backends.engines.figures import Bodies, Engine, Sample
from gateway.backends.engines.prometheus import parse

_PATH = "/prometheus/metrics"
_NAMES = [
    f"trtllm_{part}"
    for part in ("num_requests_running", "num_requests_waiting", "kv_cache_utilization", "kv_cache_reused_blocks",
                 "kv_cache_missed_blocks", "num_paused_requests", "request_error", "spec_decode_num_draft_tokens",
                 "spec_decode_num_accepted_tokens")
]  # fmt: skip


def _read(bodies: Bodies) -> Sample:
    found = parse(bodies.get(_PATH), _NAMES)
    hits, misses = found.total("trtllm_kv_cache_reused_blocks"), found.total("trtllm_kv_cache_missed_blocks")
    return Sample(
        running=found.count("trtllm_num_requests_running"),
        waiting=found.count("trtllm_num_requests_waiting"),
        kv_used=found.mean("trtllm_kv_cache_utilization"),
        prompt_tokens_total=None if hits is None or misses is None else hits + misses,  # in blocks: only the share counts
        cached_tokens_total=hits,
        preempted_total=found.total("trtllm_num_paused_requests"),
        refused_total=found.total("trtllm_request_error"),
        drafted_total=found.total("trtllm_spec_decode_num_draft_tokens"),
        accepted_total=found.total("trtllm_spec_decode_num_accepted_tokens"),
    )


def _zero_to_one(urgency: float) -> float:
    """Its own scale: higher goes first, 0.5 is the default."""
    return min(max(urgency, 0.0), 1.0)


TRTLLM = Engine(
    name="tensorrt-llm", paths=(_PATH,), read=_read, salt_field="cache_salt", priority=_zero_to_one, events="drain",
    flags={
        "load": "return_perf_metrics: true",
        "priority": "scheduler_config.waiting_queue_policy: priority",
        "kv_events": "kv_cache_config.event_buffer_max_size: 1024",
    },
)  # fmt: skip
