"""The embedded engine: vLLM's names after a prefix of its own; lower priorities go first within a lane."""
from __future__ import annotations

from gateway.backends.engines.figures import Bodies, Engine, Sample
from gateway.backends.engines.vllm import lower_first, read


def _read(bodies: Bodies) -> Sample:
    return read("tollway_engine:", bodies.get("/metrics"))


EMBEDDED = Engine(
    name="embedded", paths=("/metrics",), read=_read, salt_field="cache_salt", priority=lower_first, events="sse"
)  # fmt: skip
