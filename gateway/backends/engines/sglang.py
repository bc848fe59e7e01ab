"""SGLang: `/v1/loads` as JSON where the version has it, else Prometheus text; higher priorities go first."""
from __future__ import annotations

from typing import Any

import msgspec

from gateway.backends.engines.figures import Bodies, Engine, Headers, Intent, Sample
from gateway.backends.engines.prometheus import Series, parse

_LOADS, _METRICS = "/v1/loads?include=core", "/metrics"
_NAMES = [
    f"sglang:{part}"
    for part in ("num_running_reqs", "num_queue_reqs", "token_usage", "prompt_tokens", "cached_tokens", "num_retracted_reqs",
                 "num_aborted_requests")
]  # fmt: skip


def _read(bodies: Bodies) -> Sample:
    text, ranks = parse(bodies.get(_METRICS), _NAMES), _ranks(bodies.get(_LOADS))
    return Sample(
        running=_sum(ranks, "num_running_reqs", text.count("sglang:num_running_reqs")),
        waiting=_sum(ranks, "num_waiting_reqs", text.count("sglang:num_queue_reqs")),
        waiting_tokens=_sum(ranks, "num_waiting_uncached_tokens", None),
        kv_used=_used(ranks, text),
        prompt_tokens_total=text.total("sglang:prompt_tokens"),
        cached_tokens_total=text.total("sglang:cached_tokens"),
        preempted_total=text.total("sglang:num_retracted_reqs"),
        refused_total=text.total("sglang:num_aborted_requests"),
    )


def _ranks(body: bytes | None) -> list[dict[str, Any]]:
    """One entry per data-parallel rank: a list, or an object with it under `loads`."""
    try:
        found = msgspec.json.decode(body or b"[]")
    except msgspec.DecodeError:
        return []
    ranks = found.get("loads", [found]) if isinstance(found, dict) else found
    return [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []


def _sum(ranks: list[dict[str, Any]], name: str, otherwise: int | None) -> int | None:
    found = [rank[name] for rank in ranks if type(rank.get(name)) is int]
    return sum(found) if found else otherwise


def _used(ranks: list[dict[str, Any]], text: Series) -> float | None:
    """Weighted by each rank's size."""
    used, most = _sum(ranks, "num_used_tokens", None), _sum(ranks, "max_total_num_tokens", None)
    return used / most if used is not None and most else text.mean("sglang:token_usage")


def _higher_first(urgency: float) -> int:
    """Steps of less than 10 do not preempt, so nobody waits is 0 and urgent is 20."""
    return round(20 * urgency)


def _headers(intent: Intent) -> Headers:
    return [(b"x-smg-routing-key", intent.session.encode("ascii", "ignore")[:128])] if intent.session else []


SGLANG = Engine(
    name="sglang", paths=(_LOADS, _METRICS), read=_read, salt_field="cache_salt", priority=_higher_first, headers=_headers,
    events="zmq",
    flags={
        "cached_tokens": "--enable-cache-report",
        "priority": "--enable-priority-scheduling",
        "load": "--enable-metrics",
        "kv_events": '--kv-events-config \'{"publisher": "zmq", "endpoint": "tcp://*:5557"}\'',
        "refusal": "--max-queued-requests N",
    },
)  # fmt: skip
