"""Verdicts on subgoals: entries of a kind of their own, so they are journalled, projected and kept like all others."""
from __future__ import annotations

import secrets
from typing import Any

from gateway.ledger import Entry


def verdict(
    *, team: str, project: str | None, key_id: str, run: str, subgoal: str, passed: bool, evidence: str, at_us: int
) -> Entry:
    """Costs nothing, and no sum counts it. The last one on a subgoal holds."""
    id = f"v-{at_us:016d}-{secrets.token_hex(6)}"
    return Entry(
        id=id, call_id=id, attempt=1, at_us=at_us, kind="verdict", team=team, project=project, key_id=key_id, run=run,
        subgoal=subgoal, dialect="", stream=False, model="", upstream_model="", backend="", provider="", lane="",
        latency_class="", policy_version="", reason=evidence, status="ok" if passed else "failed",
        cost_nanos=0, uncached_cost_nanos=0,
    )  # fmt: skip


def verdict_json(entry: Entry) -> dict[str, Any]:
    return {"passed": entry.status == "ok", "evidence": entry.reason, "at_us": entry.at_us, "key": entry.key_id}
