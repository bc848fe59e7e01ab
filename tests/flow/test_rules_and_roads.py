"""Every rule of a policy on every road that makes something: a new field of a policy, or a new way in, has to be added here."""
from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import pytest

from gateway.web.front import COUNTED, DIALECT_OF_PATH, takes
from router_policies.rules import ClientMay, Limits, ModelRules, Policy, Rate
from tests.batches.conftest import BATCH_PRICES, QUEUE, create, ended
from tests.batches.provider import Provider
from tests.build import PLAIN, Gateway, backend, chat_answer, messages_answer
from tests.upstream import Site, Upstream, whole

MODEL = "m-roads"
TALK = [{"role": "user", "content": "hi"}]
GEMINI = "/gemini/v1beta/models/MODEL:generateContent"


class Road(NamedTuple):
    """A way in. `output` and `answers`: a body's field for most tokens and number of answers, None where it has none."""

    path: str
    body: dict[str, Any]
    output: str | None = None
    answers: str | None = None
    batch: bool = False
    model: str = MODEL


ROADS = {
    "chat": Road("/v1/chat/completions", {"messages": TALK}, "max_completion_tokens", "n"),
    "responses": Road("/v1/responses", {"input": "hi"}, "max_output_tokens"),
    "messages": Road("/v1/messages", {"max_tokens": 9, "messages": TALK}, "max_tokens"),
    "embeddings": Road("/v1/embeddings", {"input": "hi"}),
    "count": Road(COUNTED, {"messages": TALK}),
    "compact": Road("/v1/responses/compact", {"input": "hi"}, "max_output_tokens"),
    "passed": Road(GEMINI, {"contents": []}, "generationConfig.maxOutputTokens", "generationConfig.candidateCount"),
    "passed by body": Road("/gemini/chat/completions", {"messages": TALK}, "max_tokens", "n"),
    "batch, live lane": Road("/v1/chat/completions", {"messages": TALK}, "max_completion_tokens", "n", True, "m-live"),
    "batch, a provider's": Road("/v1/chat/completions", {"messages": TALK}, "max_completion_tokens", "n", True, "m-off"),
}  # fmt: skip
FREE = {"/v1/responses", "/v1/files", "/v1/batches"}
"""Beside these paths themselves what is below them only reads, deletes, cancels or stores: `test_what_is_free_makes_nothing`."""


class Rule(NamedTuple):
    """`policy` of a team, the `key` of it; `wish` makes a body that breaks it; `then`: the first calls are fine, a later one
    is not. `but`: roads on which it says nothing, with the reason."""

    policy: dict[str, Any]
    statuses: set[int]
    key: Mapping[str, Any] = MappingProxyType({})
    wish: Callable[[Road, dict[str, Any]], dict[str, Any] | None] = lambda road, body: body
    then: bool = False
    headers: Mapping[str, str] = MappingProxyType({})
    but: Mapping[str, str] = MappingProxyType({})


def _put(field: str | None, value: Any) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
    def made(body: dict[str, Any]) -> dict[str, Any] | None:
        if field is None:
            return None
        outer, _, inner = field.partition(".")
        return {**body, outer: {inner: value} if inner else value}

    return made


def _cap(usd: float, scope: str) -> dict[str, Any]:
    return {"budgets": [{"name": "cap", "limit_usd": usd, "scope": scope}]}


NOTHING_MADE = {"count": "counting makes nothing that costs, and is not booked"}
NO_CALL = {**NOTHING_MADE, "embeddings": "what is embedded is no prompt that an agent repeats"}
LEFT = dict.fromkeys(("batch, live lane", "batch, a provider's"), "waits for its place instead")
RULES = {
    "models.deny": Rule({"models": {"deny": ["m-*"]}}, {403, 404}),
    "models.allow": Rule({"models": {"allow": ["other"]}}, {403, 404}),
    "key.models": Rule({}, {403}, {"limits": {"models": ["other"]}}),
    "key.budget": Rule({}, {402}, {"budget": {"limit_nanos": 1, "window": "day"}}, but=NOTHING_MADE),
    "backends": Rule({"backends": {"allow": ["nobody"]}}, {400, 403, 404}),
    "unpriced": Rule({"unpriced": "refuse"}, {403}, wish=lambda road, body: {**body, "model": "u-" + body["model"]}),
    "limits.max_output_tokens": Rule({"limits": {"max_output_tokens": 20}}, {400}, wish=lambda road, body: _put(road.output, 21)(body)),
    "limits.max_choices": Rule({"limits": {"max_choices": 2}}, {400}, wish=lambda road, body: _put(road.answers, 3)(body)),
    "limits.max_body_bytes": Rule({"limits": {"max_body_bytes": 10}}, {400}),
    "requests_per_minute": Rule({"limits": {"requests_per_minute": 1}}, {429}, then=True, but=NOTHING_MADE | LEFT),
    "tokens_per_minute": Rule({"limits": {"tokens_per_minute": 1}}, {429}, then=True, but=NOTHING_MADE | LEFT),
    "usd_per_minute": Rule({"limits": {"usd_per_minute": 0.0000001}}, {429}, then=True, but=NOTHING_MADE | LEFT),
    "same_prompt_per_minute": Rule({"limits": {"same_prompt_per_minute": 1}}, {429}, then=True, but=NO_CALL | LEFT),
    "budget of the team": Rule(_cap(0.000000001, "team"), {402}, but=NOTHING_MADE),
    "budget of the key": Rule(_cap(0.000000001, "key"), {402}, but=NOTHING_MADE),
    "budget of the model": Rule(_cap(0.000000001, "model"), {402}, but=NOTHING_MADE),
    "budget of the run": Rule(_cap(0.000000001, "run"), {402}, headers={"x-tollway-run": "r1"}, but=NOTHING_MADE),
    "budget of a tag": Rule(_cap(0.000000001, "tag:job"), {402}, headers={"x-tollway-tags": "job=a"}, but=NOTHING_MADE),
}  # fmt: skip
COVERED = {
    Limits: {"max_output_tokens", "max_body_bytes", "max_choices", "rates"},
    Rate: {"requests_per_minute", "tokens_per_minute", "usd_per_minute", "same_prompt_per_minute"},
    ModelRules: {"allow", "deny"},
    Policy: {"models", "budgets", "backends", "unpriced", "limits"},
}
ELSEWHERE = {
    Limits: set[str](),
    Rate: {"name", "scope", "models", "concurrent"},  # which calls a rate is about; tests/contracts and flow/test_budgets.py
    ModelRules: {"aliases", "fallbacks"},  # say where a call goes, forbid nothing
    ClientMay: {"choose_class", "set_deadline", "bypass_normalize", "set_tags"},  # what is said is not heard: flow/test_policy.py
    Policy: {
        "team", "version", "classes", "default_class", "projects", "mode", "canary", "closed", "description", "file", "client_may", "rules",
        "normalize", "cache", "ceiling_usd_per_mtok", "hang_up", "explore", "tests", "offers", "kinds",
    },
}  # fmt: skip


def team(rule: str) -> str:
    return rule.replace(" ", "-").replace("_", "-")


@pytest.fixture(scope="module")
def roads(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, list[Site], Provider]]:
    up, claude, google = (upstream.site(name) for name in ("roads", "roads-claude", "roads-google"))
    up.says(whole(chat_answer()))
    claude.says(whole(messages_answer()))
    google.says(whole(chat_answer()))
    models = [MODEL, "u-" + MODEL]
    with Provider() as provider:
        common = {"url": provider.url, "key": "env:PROVIDER_KEY", "provider": "test", "connect_timeout_ms": 60_000, "dialect": "openai", "fields": []}
        backends = {
            "up": backend(up, speaks=["chat", "responses", "embeddings"], models=models),
            "claude": backend(claude, "anthropic", models=models, fields=[]),
            "google": backend(google, "other", models=[]),
            "live": {**common, "models": ["m-live", "u-m-live"]},
            "off": {**common, "models": ["m-off", "u-m-off"], "lanes": {"batch": {"offline": True}}},
        }
        policies = {team(name): {**PLAIN, **rule.policy} for name, rule in RULES.items()} | {"plain": PLAIN, "no-x": {**PLAIN, "models": {"deny": ["x-*"]}}, "small-budget": {**PLAIN, **_cap(1.5, "team")}}
        config = {"backends": backends, "passthrough": {"/gemini": "google"}, "queue": QUEUE}
        with Gateway(tmp_path_factory.mktemp("roads"), config, policies, BATCH_PRICES) as gateway:
            yield gateway, [up, claude, google], provider


def send(gateway: Gateway, road: Road, body: dict[str, Any], whose: str, headers: Mapping[str, str]) -> tuple[int, str]:
    """Status and text of the answer; of a batch, of its only call."""
    if not road.batch:
        path = road.path.replace("MODEL", body["model"])
        answer = gateway.ask("POST", path, gateway.key(whose), json=body, headers=headers)
        return answer.status_code, answer.text
    row = {"custom_id": "c", "method": "POST", "url": road.path, "body": body}
    batch = ended(gateway, create(gateway, [row], "24h", whose, headers=headers)["id"], whose)
    file = batch["output_file_id"] or batch["error_file_id"]
    found = json.loads(gateway.ask("GET", f"/v1/files/{file}/content", gateway.key(whose)).text)
    return (found["response"] or {}).get("status_code", 0), json.dumps(found)


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_holds_on_every_road(roads: tuple[Gateway, list[Site], Provider], rule: str, road: str) -> None:
    """A call that breaks it is refused, and nobody upstream hears of it; one that keeps it goes through."""
    gateway, sites, provider = roads
    what, way = RULES[rule], ROADS[road]
    if road in what.but:
        return
    base = {"model": way.model, **way.body}
    body = what.wish(way, base)
    if body is None:
        return
    whose = f"{team(rule)}"
    if whose not in gateway._keys:
        gateway._keys[whose] = gateway.make_key(whose, **what.key)["key"]
    if what.then:
        gateway._keys[whose] = gateway.make_key(whose, **what.key)["key"]
        for _ in range(2):  # a limit of one a minute lets two go at once
            gateway.ask("POST", way.path.replace("MODEL", way.model), gateway.key(whose), json=base, headers=what.headers)
    heard = [len(site.requests) for site in sites], len(provider.live), len(provider.batches)
    status, said = send(gateway, way, body, whose, what.headers)
    assert status in what.statuses, said
    assert ([len(site.requests) for site in sites], len(provider.live), len(provider.batches)) == heard


@pytest.mark.parametrize("road", ROADS)
def test_without_a_rule_it_goes_through(roads: tuple[Gateway, list[Site], Provider], road: str) -> None:
    """So that a refusal above is the rule's doing."""
    gateway, _, _ = roads
    way = ROADS[road]
    body = {"model": way.model, **way.body}
    status, said = send(gateway, way, _put(way.output, 21)(body) or body, "plain", {})
    assert status == 200, said


@pytest.mark.parametrize(("path", "statuses"), [
    ("/v1/responses/", {404}), ("/v1/responses//", {404}), ("/v1/responses/x", {404}), ("/v1/responses/%2e", {404}), ("/v1/responses/%2e/compact", {404}),
    ("/gemini/%2e/models/m-roads:generateContent", {404}),
])  # fmt: skip
def test_what_is_free_makes_nothing(roads: tuple[Gateway, list[Site], Provider], path: str, statuses: set[int]) -> None:
    """No spelling of a path that makes answers passes for one that does not."""
    gateway, sites, _ = roads
    heard = [len(site.requests) for site in sites]
    answer = gateway.chat({"model": MODEL, "input": "hi"}, path=path)
    assert answer.status_code in statuses, answer.text
    assert [len(site.requests) for site in sites] == heard


@pytest.mark.parametrize(("content", "headers", "status"), [
    (gzip.compress(b'{"model":"m-roads"}'), {"content-encoding": "gzip"}, 415),
    (b' {"model":"m-roads"}', {}, 404),
    (b'{"model":"other","model":"m-roads"}', {}, 400),
    (b'{"model":"m\\u002droads"}', {}, 404),
    (b'{"model":"other","models":["m-roads"]}', {}, 404),
    (b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm-roads\r\n--b--', {"content-type": "multipart/form-data; boundary=b"}, 404),
], ids=["packed", "blank", "twice", "escaped", "among others", "form"])  # fmt: skip
def test_no_spelling_hides_a_model(roads: tuple[Gateway, list[Site], Provider], content: bytes, headers: dict[str, str], status: int) -> None:
    """From a team that may not use it; others may send what cannot be read."""
    gateway, _, _ = roads
    answers: dict[str, httpx.Response] = {whose: gateway.chat(content, whose, "/gemini/x", headers=headers) for whose in (team("models.deny"), "plain")}
    assert {whose: answer.status_code for whose, answer in answers.items()} == {team("models.deny"): status, "plain": 200}


@pytest.mark.parametrize("road", ["chat", "responses", "messages", "passed by body", "batch, live lane", "batch, a provider's"])
def test_a_model_to_fall_back_on_is_one_that_is_named(roads: tuple[Gateway, list[Site], Provider], road: str) -> None:
    """What OpenRouter has `models` for; others may say so."""
    gateway, _, _ = roads
    way = ROADS[road]
    body = {"model": way.model, **way.body, "models": ["x-denied"]}
    statuses = {whose: send(gateway, way, body, whose, {})[0] for whose in ("no-x", "plain")}
    assert statuses["plain"] == 200
    assert statuses["no-x"] in (403, 404)


def test_an_embedded_image_counts_as_one_where_it_is_passed_on(roads: tuple[Gateway, list[Site], Provider]) -> None:
    """A megabyte of Google's `inlineData` keeps within a budget and a limit that as much text does not keep to."""
    gateway, _, _ = roads
    path, statuses = GEMINI.replace("MODEL", MODEL), []
    for data in ("a b " * 250_000, "iVBORw0KGgoA" * 90_000):
        content = {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": data}}]}], "generationConfig": {"maxOutputTokens": 9}}
        statuses.append(gateway.chat(content, "small-budget", path).status_code)
    assert statuses == [402, 200]


def test_all_rules_and_roads_are_here() -> None:
    """What is added to a policy or to the paths has to be added to the tables, or named among those that forbid nothing."""
    for kind, elsewhere in ELSEWHERE.items():
        assert {each.name for each in fields(kind) if not each.name.startswith("_")} == COVERED.get(kind, set()) | elsewhere, kind
    paths = {way.path for way in ROADS.values()}
    assert {*DIALECT_OF_PATH, COUNTED} <= paths
    below = {path for path in FREE if takes(path + "/x", ())}
    assert below == FREE
    for path in ("/v1/other", "/v1/completions", "/v1/images/generations", "/v1/chat/completions/"):
        assert not takes(path, ())
