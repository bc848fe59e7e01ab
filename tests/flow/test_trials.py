"""A canary that costs more is rolled back by itself, and stays so."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.build import PLAIN, Gateway, backend, chat_answer, chat_body
from tests.upstream import Upstream, until, whole

LANES = {"fast": {"service_tier": "priority"}, "standard": {"service_tier": "default"}}
LIVE: dict[str, Any] = {**PLAIN, "team": "tried", "classes": {"standard": {"lanes": ["standard"]}}}
CANARY = {
    **LIVE, "mode": "canary", "canary": {"share": 0.5, "min_calls": 10, "max_cost_rise": 0.1},
    "classes": {"standard": {"lanes": ["fast"]}},
}  # fmt: skip

def test_a_dear_canary_is_rolled_back_and_stays_so(upstream: Upstream, tmp_path: Path) -> None:
    """Half of the calls are decided by it until it is known to be dearer; a restart does not bring it back, a change of the file does."""
    site = upstream.site("trial")
    site.says(whole(chat_answer(usage={"prompt_tokens": 1_000, "completion_tokens": 10, "total_tokens": 1_010})))
    config = {"backends": {"two": backend(site, lanes=LANES, models=["m-trial"])}}
    files = {"tried": LIVE, "tried-next": CANARY}

    def trial(gateway: Gateway) -> dict[str, Any]:
        found: dict[str, Any] = gateway.ask("GET", "/tollway/admin/policies").json()["on_trial"]["tried"]
        return found

    with Gateway(tmp_path, config, files) as gateway:
        lanes = [gateway.chat(chat_body("m-trial"), "tried").headers["x-tollway-lane"] for _ in range(60)]
        assert set(lanes[:20]) == {"fast", "standard"}
        why = until(lambda: trial(gateway)["rolled_back"], "the roll-back")
        assert "a call costs 0.0042 USD against 0.0021" in why
        assert trial(gateway)["canary"]["calls"] >= 10
        assert gateway.chat(chat_body("m-trial"), "tried").headers["x-tollway-lane"] == "standard"
    with Gateway(tmp_path, config, files) as gateway:
        assert trial(gateway)["rolled_back"] == why
        assert {gateway.chat(chat_body("m-trial"), "tried").headers["x-tollway-lane"] for _ in range(12)} == {"standard"}
    changed = {**files, "tried-next": {**CANARY, "canary": {"share": 1}}}
    with Gateway(tmp_path, config, changed) as gateway:
        assert trial(gateway)["rolled_back"] is None
        assert gateway.chat(chat_body("m-trial"), "tried").headers["x-tollway-lane"] == "fast"
