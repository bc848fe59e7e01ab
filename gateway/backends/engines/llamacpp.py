"""llama.cpp's server: counts in `/metrics` (needs its flag), the cache's use from `/slots`; no priority, no salt."""
from __future__ import annotations

from typing import Any

import msgspec

from gateway.backends.engines.figures import Bodies, Engine, Sample
from gateway.backends.engines.prometheus import parse

_METRICS, _SLOTS = "/metrics", "/slots"
_NAMES = (
    "llamacpp:requests_processing", "llamacpp:requests_deferred", "llamacpp:spec_decode_num_draft_tokens",
    "llamacpp:spec_decode_num_accepted_tokens",
)  # fmt: skip


def _read(bodies: Bodies) -> Sample:
    found, slots = parse(bodies.get(_METRICS), _NAMES), _slots(bodies.get(_SLOTS))
    busy = sum(slot.get("is_processing") is True for slot in slots) if slots else None
    running = found.count("llamacpp:requests_processing")
    return Sample(
        running=busy if running is None else running,
        waiting=found.count("llamacpp:requests_deferred"),
        kv_used=_used(slots),
        drafted_total=found.total("llamacpp:spec_decode_num_draft_tokens"),
        accepted_total=found.total("llamacpp:spec_decode_num_accepted_tokens"),
    )


def _slots(body: bytes | None) -> list[dict[str, Any]]:
    try:
        found = msgspec.json.decode(body or b"[]")
    except msgspec.DecodeError:
        return []
    return [slot for slot in found if isinstance(slot, dict)] if isinstance(found, list) else []


def _used(slots: list[dict[str, Any]]) -> float | None:
    """Tokens that busy slots hold, of all that fit; a slot that had no task yet says nothing of its prompt."""
    room = sum(slot["n_ctx"] for slot in slots if isinstance(slot.get("n_ctx"), int))
    held = sum(slot.get("n_prompt_tokens", 0) for slot in slots if slot.get("is_processing") is True)
    return min(held / room, 1.0) if room else None


LLAMACPP = Engine(name="llama.cpp", paths=(_METRICS, _SLOTS), read=_read, flags={"load": "--metrics"})
