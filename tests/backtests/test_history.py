from typing import ClassVar

import pytest

from gateway.backtests import history
from gateway.core.usage import TokenUsage
from gateway.ledger import Entry
from gateway.settings_file import BackendSettings, LaneSettings
from router_policies.types import Rates

ENTRY = Entry(
    id="1", call_id="1", attempt=1, at_us=5_000_000, team="t", key_id="k", dialect="anthropic_messages", stream=True, model="m",
    upstream_model="up", backend="b", provider="p", lane="fast", latency_class="interactive", policy_version="v",
    reason="class interactive (client's word); b/fast is ...", status="ok", first_token_ms=250.0, total_ms=1_250.0,
    tokens=TokenUsage(uncached=100, cache_read=900, output=101),
)  # fmt: skip


class Settings:
    backends: ClassVar = {"b": BackendSettings(dialect="openai", url="http://x", models={"m": "up"}, lanes={
        "fast": LaneSettings(service_tier="priority", slots=3), "slow": LaneSettings(),
    })}  # fmt: skip


def test_lanes_are_as_fast_as_they_were_seen():
    """First guesses where nothing was seen; the price of each lane's tier."""
    rates = {"priority": Rates(2, 2, 2, 2), None: Rates(1, 1, 1, 1)}
    fast, slow = history.lanes(Settings(), lambda provider, model, tier: rates[tier], [ENTRY] * 50)
    assert fast.first_token_s + 100 * fast.prefill_s_per_token == pytest.approx(0.25, rel=0.1)
    assert fast.seconds_per_output_token == pytest.approx(0.01, rel=0.05)
    assert (fast.slots, fast.rates["m"].uncached, slow.rates["m"].uncached) == (3, 2, 1)
    assert (slow.first_token_s, slow.seconds_per_output_token) == (0.5, 0.02)
