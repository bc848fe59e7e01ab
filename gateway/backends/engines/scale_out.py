"""Routers with many engines behind them: they pick the replica, we pick the pool and pass salt, session and class on."""
from __future__ import annotations

from gateway.backends.engines.figures import Bodies, Engine, Headers, Intent, Sample
from gateway.backends.engines.prometheus import parse
from gateway.backends.engines.vllm import VLLM, clean_salt, lower_first, read


def _ray(bodies: Bodies) -> Sample:
    """vLLM's figures come out through Ray's exporter, which writes underscores for colons."""
    return read("ray_vllm_", bodies.get("/metrics"))


def _dynamo(bodies: Bodies) -> Sample:
    names = ("dynamo_frontend_inflight_requests", "dynamo_frontend_queued_requests")
    found = parse(bodies.get("/metrics"), names)
    return Sample(running=found.count(names[0]), waiting=found.count(names[1]))


def _objective(intent: Intent) -> Headers:
    """llm-d's endpoint picker reads both generations of its header names; class is the objective, team the fairness id."""
    told = {"objective": intent.objective, "fairness-id": intent.team}
    return [
        (f"{prefix}-inference-{name}".encode(), value.encode("ascii", "ignore")[:128])
        for name, value in told.items() if value
        for prefix in ("x-gateway", "x-llm-d")
    ]  # fmt: skip


RAY = Engine(
    name="ray-serve-llm", paths=("/metrics",), read=_ray, salt_field="cache_salt", clean_salt=clean_salt, priority=lower_first,
    health="/-/healthz", flags=VLLM.flags,
)  # fmt: skip
LLM_D = Engine(
    name="llm-d", paths=(), read=lambda _: Sample(), salt_field="cache_salt", clean_salt=clean_salt, headers=_objective,
    health="/healthz", flags=VLLM.flags,
)  # fmt: skip
DYNAMO = Engine(name="dynamo", paths=("/metrics",), read=_dynamo, flags={"kv_events": "--router-mode kv"})
