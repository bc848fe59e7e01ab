"""From a client's file to its answers and the ledger, over real HTTP on both sides."""
from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.batches.conftest import create, ended, line, look, rows
from tests.batches.provider import Provider
from tests.build import PLAIN, Gateway
from tests.upstream import until

Start = Callable[..., Gateway]


def booked(gateway: Gateway, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of an output file's lines, as the ledger has them."""
    return [gateway.call(row["response"]["request_id"]) for row in rows]


def attempts(gateway: Gateway) -> int:
    return sum(row["attempts"] for row in gateway.ask("GET", "/tollway/usage").json()["rows"])


def test_calls_go_down_the_cheap_lane_in_their_order(start: Start, provider: Provider) -> None:
    """Flex, though standard would be quicker; the answers are in the output file, the cost is in the ledger, of the class batch."""
    with start(at_once=1) as gateway:
        batch = create(gateway, [line(n, "m-live") for n in range(5)], headers={"x-tollway-tags": "job=night", "x-tollway-run": "r1"})
        assert batch["status"] == "in_progress"
        over = ended(gateway, batch["id"])
        assert (over["status"], over["request_counts"]) == ("completed", {"total": 5, "completed": 5, "failed": 0})
        assert over["metadata"] == {"job": "nightly"}
        found = rows(gateway, over["output_file_id"])
        assert [row["custom_id"] for row in found] == [f"c{n}" for n in range(5)]
        assert found[0]["response"]["body"]["choices"][0]["message"]["content"] == "Hello there."
        assert [body["messages"][0]["content"] for body in provider.live] == [f"question {n}" for n in range(5)]
        assert {body["service_tier"] for body in provider.live} == {"flex"}
        call = booked(gateway, found)[0]
        assert (call["class"], call["lane"], call["run"]) == ("batch", "flex", "r1")
        assert gateway.ask("GET", "/tollway/usage?by=tag:job").json()["rows"][0]["calls"] == 5


@pytest.mark.parametrize(("model", "wire"), [("m-off", "openai"), ("m-claude", "anthropic")])
def test_a_providers_batch_is_a_lane(start: Start, provider: Provider, model: str, wire: str) -> None:
    """Handed over in one piece, delivered in the client's dialect, booked at the batch price by corrections, holds settled."""
    provider.ready = False
    budget = {**PLAIN, "budgets": [{"name": "all", "limit_usd": "1", "window": "total"}]}
    with start({"plain": budget}) as gateway:
        batch = create(gateway, [line(n, model, max_tokens=50) for n in range(3)])
        until(lambda: provider.batches, "the batch at the provider")
        [sent] = provider.batches.values()
        assert [call["messages"][0]["content"] for call in sent["calls"].values()] == [f"question {n}" for n in range(3)]
        assert "sk-provider-canary" in "".join(provider.keys)
        until(lambda: attempts(gateway) == 3, "three attempts, cost not known yet")
        provider.ready = True
        over = ended(gateway, batch["id"])
        found = rows(gateway, over["output_file_id"])
        assert [row["custom_id"] for row in found] == ["c0", "c1", "c2"]
        assert "answer to" in found[0]["response"]["body"]["choices"][0]["message"]["content"]
        for call in booked(gateway, found):
            assert (call["status"], call["lane"]) == ("ok", "batch")
            # 40 uncached, 60 cached, 5 of output at half price
            assert call["cost_usd"] == "0.000080000"
        sums = gateway.ask("GET", "/tollway/usage").json()["rows"][0]
        assert float(sums["cost_usd"]) == pytest.approx(3 * 0.00008)
        assert not provider.live


@pytest.mark.parametrize("model", ["m-off", "m-claude"])
def test_a_batch_has_known_fields_only_where_a_call_has(start: Start, provider: Provider, model: str) -> None:
    """As for a call that somebody waits for, and its entry says so."""
    with start() as gateway:
        batch = create(gateway, [line(0, model, max_tokens=50, mcp_servers=[{"url": "http://10.0.0.1"}])])
        found = rows(gateway, ended(gateway, batch["id"])["output_file_id"])
        [sent] = provider.batches.values()
        assert [call["max_tokens"] for call in sent["calls"].values()] == [50]
        assert "mcp_servers" not in json.dumps(sent["calls"])
        [call] = booked(gateway, found)
        assert [each["place"] for each in call["receipts"] if "dropped" in each] == ["mcp_servers"]


def test_long_names_of_tools_go_to_a_batch_shortened_and_come_back_whole(start: Start, provider: Provider) -> None:
    """As with a call: the provider would refuse them, and the client knows no other."""
    name = "look_up_" + "x" * 130
    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    with start() as gateway:
        batch = create(gateway, [line(0, "m-claude", max_tokens=50, tools=[tool])])
        [found] = rows(gateway, ended(gateway, batch["id"])["output_file_id"])
        [sent] = provider.batches.values()
        [call] = sent["calls"].values()
        assert len(call["tools"][0]["name"]) <= 128
        assert found["response"]["body"]["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == name


def test_an_output_limit_goes_to_a_providers_batch_too(start: Start, provider: Provider) -> None:
    """The policy's, and what the budget pays for; both as for a call that somebody waits for."""
    poor = {**PLAIN, "budgets": [{"name": "all", "limit_usd": "0.02", "window": "total"}]}
    with start({"plain": {**PLAIN, "limits": {"max_output_tokens": 99}}, "poor": poor}) as gateway:
        ended(gateway, create(gateway, [line(0, "m-claude"), line(1, "m-off"), line(2, "m-off", max_tokens=7)])["id"])
        assert sorted(call.get("max_tokens") for batch in provider.batches.values() for call in batch["calls"].values()) == [7, 99, 99]
        too_much = ended(gateway, create(gateway, [line(3, "m-off", max_tokens=100)])["id"])
        assert too_much["request_counts"]["failed"] == 1
        seen = len(provider.batches)
        ended(gateway, create(gateway, [line(4, "m-off")], team="poor")["id"], "poor")
        [sent] = list(provider.batches.values())[seen:]
        [call] = sent["calls"].values()
        assert 64 <= call["max_tokens"] <= 4_000  # 0.02 dollars at 5 dollars a million


def test_a_key_for_some_models_has_them_in_batches_only(start: Start, provider: Provider) -> None:
    """Neither an ordinary lane nor a provider's batch makes a call that the key may not make."""
    with start() as gateway:
        narrow = gateway.make_key("plain", limits={"models": ["m-live"]})["key"]
        rows_ = b"\n".join(json.dumps(line(n, model)).encode() for n, model in enumerate(("m-live", "m-off")))
        files = {"file": ("calls.jsonl", rows_), "purpose": (None, "batch")}
        file = gateway.ask("POST", "/v1/files", narrow, files=files).json()["id"]
        wish = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = gateway.ask("POST", "/v1/batches", narrow, json=wish).json()
        over = ended(gateway, batch["id"])
        assert over["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        [refused] = rows(gateway, over["error_file_id"])
        assert (refused["custom_id"], refused["response"]["status_code"]) == ("c1", 403)
        assert not provider.batches


def test_a_restart_loses_nothing(start: Start, provider: Provider) -> None:
    """Neither what waits for its hour, nor what lies at the provider: its answers are booked by the next process."""
    provider.ready = False
    night = {**PLAIN, "classes": {"batch": {"wait": {"hours": "0-0"}}}}
    with start({"plain": PLAIN, "night": night}) as gateway:
        away = create(gateway, [line(n, "m-off") for n in range(2)])
        until(lambda: provider.batches, "the batch at the provider")
        until(lambda: attempts(gateway) == 2, "both to be booked")
        waits = create(gateway, [line(7, "m-live")], team="night")
    assert not provider.live
    provider.ready = True
    with start({"plain": PLAIN, "night": PLAIN}) as gateway:
        over = ended(gateway, away["id"])
        assert over["request_counts"]["completed"] == 2
        assert {call["cost_usd"] for call in booked(gateway, rows(gateway, over["output_file_id"]))} == {"0.000080000"}
        until(lambda: look(gateway, waits["id"], "night")["status"] == "completed", "the other one, as soon as it may")
        assert len(provider.live) == 1


def test_what_is_at_risk_moves_up(start: Start, provider: Provider) -> None:
    """A provider that is not done in time is told to stop, and its calls take ordinary lanes before their deadline."""
    provider.ready = False
    quick = {"plain": {**PLAIN, "classes": {"batch": {"wait": {"lanes": ["batch"]}}}}}
    with start(quick) as gateway:
        pacing = gateway.asgi.queue.worker.pacing
        pacing.pace = pacing.pace._replace(service_s=1.0, turnaround_s=5.0)
        batch = create(gateway, [line(n, "m-oai") for n in range(2)], window="1m")
        until(lambda: provider.batches, "the batch at the provider")
        assert not provider.live
        late_s, since = batch["created_at"] + 53.0, time.time()
        pacing.now_s = lambda: late_s + (time.time() - since) / 10     # the last seconds are long: a slow machine is not late
        over = ended(gateway, batch["id"])
        assert over["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        assert provider.batches["batch_p0"]["cancelled"]
        assert len(provider.live) == 2
        assert {call["cost_usd"] for call in booked(gateway, rows(gateway, over["output_file_id"]))} == {"0.000080000"}
        sums = gateway.ask("GET", "/tollway/usage").json()["rows"][0]
        assert float(sums["cost_usd"]) == pytest.approx(2 * 0.00008), "what the provider did not do costs nothing"


def test_what_a_provider_leaves_undone_is_done_again(start: Start, provider: Provider) -> None:
    """And what it refuses is the client's answer, in the client's shape."""
    provider.undone, provider.wrong = 1, {0}
    with start() as gateway:
        batch = create(gateway, [line(n, "m-off") for n in range(3)])
        until(lambda: len(provider.batches) == 2, "the undone call in a second batch")
        provider.undone, provider.wrong = 0, set()
        over = ended(gateway, batch["id"])
        assert over["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        [bad] = rows(gateway, over["error_file_id"])
        assert (bad["custom_id"], bad["response"]["status_code"]) == ("c0", 400)
        assert bad["response"]["body"]["error"]["message"] == "bad"


@pytest.mark.parametrize("how", ["refused", "failed"])
def test_where_the_provider_takes_none_ordinary_cheap_lanes_do(start: Start, provider: Provider, how: str) -> None:
    """Flex, while the batch lane rests."""
    provider.refuse, provider.fails = (500, False) if how == "refused" else (0, True)
    with start() as gateway:
        over = ended(gateway, create(gateway, [line(1, "m-oai")])["id"])
        assert over["request_counts"]["completed"] == 1
        assert [body["service_tier"] for body in provider.live] == ["flex"]


def test_a_busy_lane_is_asked_again(start: Start, provider: Provider) -> None:
    """A 429 is no answer for somebody who has the night."""
    provider.live_status = 429
    with start() as gateway:
        batch = create(gateway, [line(1, "m-live")], window="1m")
        until(lambda: len(provider.live) >= 1, "the first try")
        provider.live_status = 200
        for probe in gateway.asgi.services.fleet.probes.values():
            probe._cooled_until = 0.0
        assert ended(gateway, batch["id"])["request_counts"]["completed"] == 1


def test_a_batch_can_be_cancelled(start: Start, provider: Provider) -> None:
    """What waits is not made, and the provider is told."""
    provider.ready = False
    with start() as gateway:
        batch = create(gateway, [line(n, "m-off") for n in range(2)])
        until(lambda: provider.batches, "the batch at the provider")
        assert gateway.ask("POST", f"/v1/batches/{batch['id']}/cancel", gateway.key()).json()["status"] == "cancelling"
        over = ended(gateway, batch["id"])
        assert (over["status"], over["request_counts"]["failed"]) == ("cancelled", 2)
        assert [row["error"]["code"] for row in rows(gateway, over["error_file_id"])] == ["batch_cancelled"] * 2
        assert provider.batches["batch_p0"]["cancelled"]


def test_a_window_that_is_over_expires(start: Start, provider: Provider) -> None:
    """Where every lane says no until then."""
    provider.live_status = 503
    with start() as gateway:
        batch = create(gateway, [line(1, "m-live")], window="1m")
        until(lambda: provider.live, "a try")
        gateway.asgi.queue.worker.pacing.now_s = lambda: time.time() + 3_600.0
        over = ended(gateway, batch["id"])
        assert (over["status"], over["request_counts"]["failed"]) == ("expired", 1)


def test_a_revoked_key_makes_no_more_calls(start: Start, provider: Provider) -> None:
    """Its calls are answered with 401."""
    later = {**PLAIN, "classes": {"batch": {"wait": {"hours": "0-0"}}}}
    with start({"plain": PLAIN, "late": later}) as gateway:
        made = gateway.make_key("late")
        gateway._keys["late"] = made["key"]
        batch = create(gateway, [line(1, "m-live")], team="late")
        gateway._keys["late"] = gateway.make_key("late")["key"]
        assert gateway.ask("DELETE", f"/tollway/admin/keys/{made['id']}").status_code in (200, 204)
        until(lambda: look(gateway, batch["id"], "late")["status"] == "completed", "its end")
        assert look(gateway, batch["id"], "late")["request_counts"]["failed"] == 1
        assert not provider.live
