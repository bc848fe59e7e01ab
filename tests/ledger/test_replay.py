"""Recorded calls, as values and as a trace file that a backtest reads back."""
from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from gateway.core.usage import TokenUsage
from gateway.ledger import Entry, replay
from router_policies.traces import read

ENTRY = Entry(
    id="1", call_id="1", attempt=1, at_us=5_000_000, team="t", key_id="k", dialect="anthropic_messages", stream=True, model="m",
    upstream_model="up", backend="b", provider="p", lane="fast", latency_class="interactive", policy_version="v",
    reason="class interactive (client's word); b/fast is ...", status="ok", first_token_ms=250.0, total_ms=1_250.0,
    tokens=TokenUsage(uncached=100, cache_read=900, output=101),
)  # fmt: skip


def test_entries_become_calls() -> None:
    """Seconds from the first; the class only where the client chose it; corrections and failures are no calls."""
    ruled = replace(ENTRY, id="2", at_us=6_500_000, reason="class interactive (rule editor); ...", stream=False, run="r")
    odd = [replace(ENTRY, kind="correction", corrects="1"), replace(ENTRY, status="failed"), replace(ENTRY, tokens=TokenUsage())]
    one, two = replay.calls([ENTRY, *odd, ruled])
    assert (one.at_s, one.prompt_tokens, one.output_tokens, one.wished_class, one.path) == (0.0, 1_000, 101, "interactive", "/v1/messages")
    assert (one.cached, one.session) == ({"b": 900}, "k")
    assert (two.at_s, two.wished_class, two.stream, two.session) == (1.5, None, False, "r")


def test_a_trace_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    """What is left out is as usual."""
    some = [ENTRY, replace(ENTRY, id="2", at_us=6_500_000, run="r", tags={"job": "nightly"})]
    file = tmp_path / "run.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in replay.lines(some)))
    assert list(read(file)) == list(replay.calls(some))
