from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway import dialects
from gateway.core.outcome import Observed
from gateway.dialects import sse
from tests.dialects.play import play

FILE = Path(__file__).parents[2].parent / "shared" / "reference" / "usage-vectors.jsonl"
APIS = {"chat_completions": "openai_chat", "messages": "anthropic_messages"}
VECTORS = [v for line in FILE.read_bytes().splitlines() if (v := orjson.loads(line))["api"] in APIS] if FILE.exists() else []
PARTS = {"reasoning", "audio_in", "audio_out", "image_in", "accepted_prediction", "rejected_prediction", "web_search_requests", "web_fetch_requests"}


def observed(vector: dict[str, Any]) -> Observed:
    dialect = APIS[vector["api"]]
    if not vector["stream"]:
        return dialects.answer(dialect, dialect, orjson.dumps(vector["payload"]), dialects.read(dialect, b'{"model":"m","messages":[]}'))[1]
    raw = b"".join(sse.frame(orjson.dumps(each), each.get("type")) for each in vector["payload"])
    return play(dialect, dialect, raw)[1].observed    # type: ignore[no-any-return]


def matches(vector: dict[str, Any], seen: Observed) -> bool:
    """Whether what was observed is what the vector says, class by class."""
    usage, expected = seen.usage, vector["expected"]
    if expected is None or usage is None:
        return expected is usage
    if "anomaly" in expected:
        return expected["anomaly"] in usage.flags
    if ("output_provisional" in usage.flags) is expected["complete"]:
        return False
    have: dict[str, int | None] = {
        "prompt_total": usage.input_total, "uncached_input": usage.uncached, "cache_read": usage.cache_read or 0, "output_total": usage.output,
        "reasoning": usage.reasoning or 0, **usage.other,
    }
    have |= {"cache_write" if ttl == "unknown" else f"cache_write_{ttl}": tokens for ttl, tokens in usage.cache_write.items()}
    for extra in expected.get("extra_iterations", ()):
        model = "" if extra["type"] == "compaction" else extra["model"]
        if usage.other[f"iteration:{extra['type']}:{model}:output"] != extra["output_total"]:
            return False
    known = PARTS | {"prompt_total", "uncached_input", "cache_read", "output_total"}
    wanted = [expected | also for also in [{}, *(vector.get("accept_also") or [])]]
    return any(all(have.get(k, 0) == n for k, n in want.items() if k in known or k.startswith("cache_write")) for want in wanted)


@pytest.mark.parametrize("vector", VECTORS, ids=[v["id"] for v in VECTORS])
def test_vector(vector: dict[str, Any]) -> None:
    """Each published form of usage is read exactly, through the road that an answer takes."""
    assert matches(vector, observed(vector))
