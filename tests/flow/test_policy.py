"""A team's file decides: class, lane, names, budgets; and a file that is edited counts within seconds, or is told about."""
from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.ledger.journal import Journal, JournalError
from tests.build import (
    PLAIN,
    Gateway,
    backend,
    chat_answer,
    chat_body,
    chat_stream,
    messages_answer,
    messages_body,
    write_policy,
)
from tests.upstream import Gate, Pause, Site, Upstream, stream, until, whole

LANES = {
    "fast": {"service_tier": "priority", "ms_per_output_token": 5, "first_token_ms": 100},
    "standard": {"service_tier": "default", "ms_per_output_token": 40, "first_token_ms": 1000},
}
RULES: dict[str, Any] = {
    **PLAIN,
    "models": {"allow": ["m-*"], "aliases": {"small": "m-lanes"}},
    "rules": [
        {"name": "by-header", "when": {"header": {"x-app": "editor*"}}, "class": "interactive"},
        {"name": "by-tag", "when": {"tag": {"job": "nightly*"}}, "class": "batch"},
        {"name": "by-client", "when": {"client": "claude-cli*"}, "class": "interactive"},
        {"name": "by-path", "when": {"path": "/v1/messages"}, "class": "batch"},
        {"name": "by-expression", "when": "stream && prompt_bytes > 5000", "class": "interactive"},
    ],
    "classes": {"interactive": {"lanes": ["fast"]}},  # the mock is as quick on either lane, which the gateway would learn
    "default_class": "standard",
    "client_may": {"class": ["interactive", "batch"]},
}


@pytest.fixture(scope="module")
def site(upstream: Upstream) -> Site:
    return upstream.site("lanes")


@pytest.fixture(scope="module")
def lanes(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One backend with a fast, dear lane and a standard one."""
    backends = {"two": backend(site, lanes=LANES, models=["m-lanes"])}
    with Gateway(tmp_path_factory.mktemp("lanes"), {"backends": backends}, {"ruled": RULES, "plain": PLAIN}) as running:
        yield running


@pytest.mark.parametrize(("headers", "fields", "path", "klass", "lane"), [
    pytest.param({}, {}, "/v1/chat/completions", "standard", "standard", id="nothing said"),
    pytest.param({"x-tollway-class": "interactive"}, {}, "/v1/chat/completions", "interactive", "fast", id="the client's word"),
    pytest.param({"x-tollway-class": "batch"}, {}, "/v1/chat/completions", "batch", "standard", id="the client's other word"),
    pytest.param({"x-tollway-class": "agent"}, {}, "/v1/chat/completions", "standard", "standard", id="a word it may not say"),
    pytest.param({"x-app": "editor-2"}, {}, "/v1/chat/completions", "interactive", "fast", id="header"),
    pytest.param({"x-tollway-tags": "job=nightly-1,x=y"}, {}, "/v1/chat/completions", "batch", "standard", id="tag"),
    pytest.param({"user-agent": "claude-cli/2.1 (x)"}, {}, "/v1/chat/completions", "interactive", "fast", id="client"),
    pytest.param({}, {"max_tokens": 5}, "/v1/messages", "batch", "standard", id="path"),
    pytest.param({}, {"stream": True, "user": "x" * 6000}, "/v1/chat/completions", "interactive", "fast", id="expression"),
    pytest.param({}, {"service_tier": "priority"}, "/v1/chat/completions", "interactive", "fast", id="the API's own tier"),
])  # fmt: skip
def test_the_class_decides_the_lane(
    lanes: Gateway, site: Site, headers: dict[str, str], fields: dict[str, Any], path: str, klass: str, lane: str
) -> None:
    """Header, tag, client, path or expression give the class, the class the lane, and headers and ledger say why."""
    site.says(stream(*chat_stream()) if fields.get("stream") else whole(chat_answer()))
    answer = lanes.chat(chat_body("m-lanes", **fields), team="ruled", path=path, headers=headers)
    assert answer.status_code == 200, answer.text
    told = {name: answer.headers[f"x-tollway-{name}"] for name in ("class", "lane")}
    assert told == {"class": klass, "lane": lane}
    assert klass in answer.headers["x-tollway-reason"]
    call = lanes.call(answer.headers["x-tollway-call"])
    assert (call["class"], call["lane"]) == (klass, lane)
    assert call["reason"] == answer.headers["x-tollway-reason"]
    assert {row["lane"] for row in call["decision"]} == {"two/fast", "two/standard"}
    assert site.requests[-1].json["service_tier"] == LANES[lane]["service_tier"]


def test_a_refused_wish_is_told(lanes: Gateway, site: Site) -> None:
    """A client that asks for a class it may not have reads so in the reason."""
    site.says(whole(chat_answer()))
    answer = lanes.chat(chat_body("m-lanes"), team="ruled", headers={"x-tollway-class": "agent"})
    assert "agent" in answer.headers["x-tollway-reason"]


def test_the_lanes_tier_sets_the_price_unless_the_answer_names_another(lanes: Gateway, site: Site) -> None:
    """40 uncached, 60 cached and 5 output cost twice as much at priority."""
    site.says(whole(chat_answer()), whole(chat_answer(service_tier="default")))
    fast = {"x-tollway-class": "interactive"}
    costs = [lanes.chat(chat_body("m-lanes"), team="ruled", headers=fast).headers["x-tollway-cost-usd"] for _ in range(2)]
    assert costs == ["0.000320000", "0.000160000"]


def test_an_alias_is_listed_and_leads_to_its_model(lanes: Gateway, site: Site) -> None:
    """The backend never hears the alias; the ledger has both names."""
    site.says(whole(chat_answer()))
    names = [model["id"] for model in lanes.ask("GET", "/v1/models", lanes.key("ruled")).json()["data"]]
    assert {"small", "m-lanes"} <= set(names)
    answer = lanes.chat(chat_body("small"), team="ruled")
    assert site.requests[-1].json["model"] == "m-lanes"
    call = lanes.call(answer.headers["x-tollway-call"])
    assert (call["model"], call["attempts"][0]["upstream_model"]) == ("small", "m-lanes")


# tools in another order


TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}}} for name in "zya"]


@pytest.mark.parametrize(("level", "kept"), [("off", False), ("lossless", False), ("equivalent", True)])
def test_tools_go_out_in_the_order_seen_first(upstream: Upstream, tmp_path: Path, level: str, kept: bool) -> None:
    """Level `equivalent`: the same set in another order is the same prefix; below it nothing moves. A receipt says what was done."""
    site = upstream.site(tmp_path.name)
    site.says(whole(chat_answer()))
    policy = {"normalize": {"level": level, "hold_out": 0}}
    with Gateway(tmp_path, {"backends": {"b": backend(site)}}, {"plain": policy}) as gateway:
        gateway.chat(chat_body(site.model, tools=TOOLS))
        answer = gateway.chat(chat_body(site.model, tools=TOOLS[::-1]))
        names = [[tool["function"]["name"] for tool in request.json["tools"]] for request in site.requests]
        assert names == [["z", "y", "a"], ["z", "y", "a"] if kept else ["a", "y", "z"]]
        assert list(site.requests[1].json["tools"][0]["function"]["parameters"]["properties"]) == ["b", "a"]
        assert len(gateway.call(answer.headers["x-tollway-call"])["receipts"]) == kept


# edited files


def ready(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.http.get(gateway.url + "/readyz").json()
    return found


def test_an_edited_file_counts_within_seconds(upstream: Upstream, tmp_path: Path) -> None:
    """A bad one keeps the old in force and is told with file, line and nearest word; a good one applies."""
    site = upstream.site(tmp_path.name)
    site.says(whole(chat_answer()))
    with Gateway(tmp_path, {"backends": {"b": backend(site)}}, {"plain": {**PLAIN, "default_class": "batch"}}) as gateway:
        assert gateway.chat(chat_body(site.model)).headers["x-tollway-class"] == "batch"
        before = gateway.ask("GET", "/tollway/admin/policies").json()["in_force"]
        write_policy(tmp_path, "plain", "team: plain\nnormalize: off\ndefault_clas: agent\n")
        notes = until(lambda: ready(gateway)["notes"], "the bad file to be noticed")
        assert "plain.yaml:3" in notes[0]
        assert "default_class" in notes[0]
        assert ready(gateway)["status"] == "ready"
        assert gateway.chat(chat_body(site.model)).headers["x-tollway-class"] == "batch"
        assert gateway.metric("tollway_policy_problems") >= 1
        assert gateway.ask("GET", "/tollway/admin/policies").json()["in_force"] == before
        write_policy(tmp_path, "plain", "team: plain\nnormalize: off\ndefault_class: agent\n")
        until(lambda: gateway.chat(chat_body(site.model)).headers["x-tollway-class"] == "agent", "the good file to apply")
        assert ready(gateway)["notes"] == []
        write_policy(tmp_path, "late", {**PLAIN, "models": {"allow": ["nothing"]}})
        until(lambda: gateway.chat(chat_body(site.model), team="late").status_code == 403, "a new team's file")


@pytest.mark.parametrize("text", ["team: plain\nbudg", "", "team: plain\nteam: plain\n", "- a\n", "team: [\n", "\x00", "team: other\n"])
def test_a_half_written_file_changes_nothing(upstream: Upstream, tmp_path: Path, text: str) -> None:
    """Whatever stands in it: the old policy stays, and the gateway says so."""
    site = upstream.site(tmp_path.name)
    site.says(whole(chat_answer()))
    policies = {"plain": {**PLAIN, "default_class": "batch"}, "other": PLAIN}
    with Gateway(tmp_path, {"backends": {"b": backend(site)}}, policies) as gateway:
        write_policy(tmp_path, "plain", text)
        assert until(lambda: ready(gateway)["notes"], "the bad file to be noticed")
        assert gateway.chat(chat_body(site.model)).headers["x-tollway-class"] == "batch"


# budgets


def money(upstream: Upstream, folder: Path, dialect: str, *budgets: dict[str, Any], **backend_fields: Any) -> tuple[Gateway, Site]:
    site = upstream.site(folder.name)
    policy = {**PLAIN, "budgets": list(budgets)}
    return Gateway(folder, {"backends": {"b": backend(site, dialect, **backend_fields)}}, {"plain": policy, "rich": PLAIN}), site


def budget(gateway: Gateway, name: str = "pot") -> dict[str, Any]:
    """The budget as the operator sees it."""
    rows = [row for row in gateway.ask("GET", "/tollway/admin/budgets").json() if row["name"] == name]
    assert len(rows) == 1, rows
    row: dict[str, Any] = rows[0]
    return row


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_forty_calls_at_once_do_not_overspend(upstream: Upstream, tmp_path: Path, dialect: str) -> None:
    """Each call costs 0.00016; the worst case of each is held before it goes out, so the limit is never passed."""
    gateway, site = money(upstream, tmp_path, dialect, {"name": "pot", "limit_usd": "0.005"})
    body, path, answer = (
        (chat_body(site.model, max_tokens=64), "/v1/chat/completions", chat_answer())
        if dialect == "openai"
        else (messages_body(site.model), "/v1/messages", messages_answer())
    )
    site.says(whole(answer, before=(Pause(0.2),)))
    with gateway:
        got: list[Any] = []
        threads = [threading.Thread(target=lambda: got.append(gateway.chat(body, path=path))) for _ in range(40)]
        gateway.key()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = Counter(answer.status_code for answer in got)
        assert set(statuses) == {200, 402}
        assert statuses[200] == len(site.requests)
        refusal = next(answer for answer in got if answer.status_code == 402)
        assert "pot" in refusal.json()["error"]["message"]
        assert refusal.headers["x-should-retry"] == "false"
        assert statuses[200] * 0.00016 <= 0.005
        row = budget(gateway)
        assert row["spent_nanos"] == statuses[200] * 160_000
        assert row["held_nanos"] == 0
        booked = gateway.ask("GET", "/tollway/usage?by=team").json()["rows"]
        assert [(row["team"], row["calls"]) for row in booked] == [("plain", statuses[200])]


@pytest.mark.parametrize(("asked", "sent", "status"), [(None, 50, 200), (20, 20, 200), (51, None, 400)])
def test_the_policys_output_limit_is_kept(
    upstream: Upstream, tmp_path: Path, asked: int | None, sent: int | None, status: int
) -> None:
    """A call that names no limit gets the policy's, one below it keeps its own, one above it is refused."""
    site = upstream.site(tmp_path.name)
    site.says(whole(chat_answer()))
    with Gateway(tmp_path, {"backends": {"b": backend(site)}}, {"plain": {**PLAIN, "limits": {"max_output_tokens": 50}}}) as gateway:
        body = chat_body(site.model, **({} if asked is None else {"max_tokens": asked}))
        assert gateway.chat(body).status_code == status
    assert [json.loads(request.body).get("max_tokens") for request in site.requests] == ([] if sent is None else [sent])


def test_a_call_without_a_limit_gets_the_one_that_the_money_pays_for(upstream: Upstream, tmp_path: Path) -> None:
    """Half a cent pays for some 480 tokens: they are held in full and asked for; with less than a sentence's worth left it is over."""
    gateway, site = money(upstream, tmp_path, "openai", {"name": "pot", "limit_usd": "0.007"})
    site.says(whole(chat_answer(usage={"prompt_tokens": 100, "completion_tokens": 400})))
    with gateway:
        assert gateway.chat(chat_body(site.model)).status_code == 200
        assert 100 < site.requests[0].json["max_tokens"] < 700
        assert budget(gateway)["spent_nanos"] == 4_200_000
        gateway.chat(chat_body(site.model))
        assert gateway.chat(chat_body(site.model)).status_code == 402
        assert budget(gateway)["held_nanos"] == 0


def test_every_answer_that_is_asked_for_is_held(upstream: Upstream, tmp_path: Path) -> None:
    """`n` answers cost n times: what one would pay for, a hundred do not."""
    gateway, site = money(upstream, tmp_path, "openai", {"name": "pot", "limit_usd": "0.01"})
    site.says(whole(chat_answer()))
    with gateway:
        assert gateway.chat(chat_body(site.model, max_tokens=100, n=100)).status_code == 402
        assert gateway.chat(chat_body(site.model, max_tokens=100, n=1)).status_code == 200


def test_holds_are_given_back(upstream: Upstream, tmp_path: Path) -> None:
    """Calls one after another fit under a limit that a few holds would fill; a failed one gives all of it back."""
    gateway, site = money(upstream, tmp_path, "openai", {"name": "pot", "limit_usd": "0.01"})
    site.says(whole(chat_answer()), whole({"error": {"message": "x", "type": "y"}}, 400), whole(chat_answer()))
    with gateway:
        body = chat_body(site.model, max_tokens=600)  # 0.006 and more held, 0.00016 spent
        assert [gateway.chat(body).status_code for _ in range(12)] == [200, 400, *[200] * 10]
        row = budget(gateway)
        assert (row["spent_nanos"], row["held_nanos"]) == (11 * 160_000, 0)


def test_a_hang_up_gives_the_hold_back(upstream: Upstream, tmp_path: Path) -> None:
    """What was produced is spent, the rest is free again."""
    gateway, site = money(upstream, tmp_path, "openai", {"name": "pot", "limit_usd": "0.01"})
    site.says(stream(*chat_stream()[:3], Gate()))
    with gateway:
        headers = {"authorization": f"Bearer {gateway.key()}"}
        body = chat_body(site.model, max_tokens=600, stream=True)
        with gateway.http.stream("POST", gateway.url + "/v1/chat/completions", json=body, headers=headers) as answer:
            arriving = answer.iter_raw()
            next(arriving)
            assert budget(gateway)["held_nanos"] > 6_000_000
            arriving.close()
        until(lambda: budget(gateway)["held_nanos"] == 0, "the hold to be given back")
        assert 0 < budget(gateway)["spent_nanos"] < 1_000_000


@pytest.mark.parametrize("limit", ["0", "0.00016"])
def test_what_is_spent_stays_spent_after_a_restart(upstream: Upstream, tmp_path: Path, limit: str) -> None:
    """The ledger knows: a budget that is spent is spent for the next process too; zero is a hard stop."""
    gateway, site = money(upstream, tmp_path, "openai", {"name": "pot", "limit_usd": "1", "window": "month"})
    site.says(whole(chat_answer()))
    with gateway:
        key = gateway.key()
        assert gateway.chat(chat_body(site.model, max_tokens=5)).status_code == 200
    config = json.loads((tmp_path / "tollway.yaml").read_text())
    policy = {**PLAIN, "budgets": [{"name": "pot", "limit_usd": limit, "window": "month"}]}
    with Gateway(tmp_path, config, {"plain": policy}) as again:
        answer = again.ask("POST", "/v1/chat/completions", key, json=chat_body(site.model, max_tokens=5))
        assert answer.status_code == 402
        assert answer.json()["error"]["code"] == "budget_exceeded"
    assert len(site.requests) == 1


def test_a_budget_of_each_key_counts_each_key(upstream: Upstream, tmp_path: Path) -> None:
    """Scope `key`: one key's spending does not stop another's."""
    gateway, site = money(upstream, tmp_path, "openai", {"name": "each", "limit_usd": "0.002", "scope": "key"})
    site.says(whole(chat_answer(usage={"prompt_tokens": 0, "completion_tokens": 200})))
    with gateway:
        first, second = gateway.make_key("plain")["key"], gateway.make_key("plain")["key"]
        body = chat_body(site.model, max_tokens=100)
        statuses = [gateway.ask("POST", "/v1/chat/completions", key, json=body).status_code for key in (first, first, second)]
        assert statuses == [200, 402, 200]


def test_a_journal_that_takes_nothing_stops_new_calls_only(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with a code, nothing sent, nothing held; once there is room again calls go on by themselves."""

    def full(*_: object) -> None:
        raise JournalError("cannot write the journal: No space left on device")

    gateway, site = money(upstream, tmp_path, "openai", {"name": "pot", "limit_usd": "1"})
    site.says(whole(chat_answer()))
    with gateway:
        assert gateway.chat(chat_body(site.model)).status_code == 200
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "open_attempt", full)
            answer = gateway.chat(chat_body(site.model))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "journal_full")
        assert len(site.requests) == 1
        assert budget(gateway)["held_nanos"] == 0
        assert gateway.chat(chat_body(site.model)).status_code == 200


def test_a_model_without_a_price_is_refused_where_money_counts(upstream: Upstream, tmp_path: Path) -> None:
    """Never metered as free: refused by name for a team with a budget."""
    gateway, site = money(upstream, tmp_path, "openai", {"name": "pot", "limit_usd": "1"}, provider="nowhere")
    site.says(whole(chat_answer()))
    with gateway:
        answer = gateway.chat(chat_body(site.model))
        assert answer.status_code == 403
        assert "price" in answer.json()["error"]["message"]
        assert site.requests == []


def test_a_canary_that_costs_more_is_rolled_back_while_calls_come(upstream: Upstream, tmp_path: Path) -> None:
    """Half of the calls go where the canary says, until it is plain that they cost twice as much; then none, and the file that is
    live decides all. A changed file is a new trial."""
    cheap, dear = upstream.site(f"{tmp_path.name}-cheap"), upstream.site(f"{tmp_path.name}-dear")
    for site in (cheap, dear):
        site.says(whole(chat_answer()))
    backends = {
        "cheap": backend(cheap, models=["m-two"]),
        "dear": backend(dear, models=["m-two"], lanes={"fast": {"service_tier": "priority"}}),
    }
    canary = {**PLAIN, "team": "plain", "mode": "canary", "canary": {"share": 0.5, "min_calls": 10},
              "classes": {"standard": {"lanes": ["fast"]}}}  # fmt: skip
    with Gateway(tmp_path, {"backends": backends}, {"plain": PLAIN, "plain-new": canary}) as gateway:
        answers = [gateway.chat(chat_body("m-two")) for _ in range(60)]
        assert {answer.status_code for answer in answers} == {200}
        lanes = [answer.headers["x-tollway-backend"] for answer in answers]
        assert 10 <= lanes.count("dear") <= 35
        assert set(lanes[-10:]) == {"cheap"}, "rolled back"
        assert next(iter(gateway.asgi.services.trials.rolled_back.values())).startswith("a call costs")
        write_policy(tmp_path, "plain-new", {**canary, "description": "again"})
        until(lambda: gateway.chat(chat_body("m-two")).headers["x-tollway-backend"] == "dear", "the new trial")
