"""Who may do what at the admin and usage paths: keys and people, as admin, lead and member."""
from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.build import PLAIN, Gateway, backend, chat_answer, chat_body, command
from tests.upstream import Site, Upstream, whole

KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="module")
def site(upstream: Upstream) -> Site:
    return upstream.site("roles")


@pytest.fixture(scope="module")
def provider(upstream: Upstream) -> Site:
    """An identity provider."""
    site = upstream.site("idp")
    keys = {"keys": [{**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key())), "kid": "one"}]}
    site.says(*[whole(document) for _ in range(4) for document in ({"jwks_uri": f"{site.url}/keys"}, keys)])
    return site


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory, site: Site, provider: Site) -> Iterator[Gateway]:
    login = {
        "oidc_issuer": provider.url, "oidc_audience": "tollway", "proxy_header": "x-auth-user", "proxy_addresses": ["127.0.0.1"],
    }  # fmt: skip
    config = {"backends": {"b": backend(site)}, "login": login}
    with Gateway(tmp_path_factory.mktemp("roles"), config, {"plain": PLAIN, "rivals": PLAIN}) as gateway:
        site.says(whole(chat_answer()))
        yield gateway


@pytest.fixture(scope="module")
def keys(gate: Gateway) -> dict[str, dict[str, Any]]:
    made = {role: gate.make_key("plain", role=role) for role in ("member", "lead")}
    made["admin"] = {"key": gate.admin_key}
    made["foreign"] = gate.make_key("rivals")
    return made


def token(subject: str) -> str:
    claims = {"iss": ISSUER[0], "aud": "tollway", "sub": subject, "exp": int(time.time()) + 60}
    return jwt.encode(claims, KEY, "ES256", headers={"kid": "one"})


ISSUER: list[str] = []


@pytest.fixture(autouse=True)
def _issuer(provider: Site) -> None:
    ISSUER[:] = [provider.url]


NEW = {"team": "plain"}
RIGHTS = [
    # method, path, body, member, lead, admin
    ("GET", "/tollway/me", None, 200, 200, 200),
    ("GET", "/tollway/usage", None, 200, 200, 200),
    ("GET", "/tollway/usage?team=rivals", None, 404, 404, 200),
    ("GET", "/tollway/admin/keys", None, 403, 200, 200),
    ("POST", "/tollway/admin/keys", NEW, 403, 201, 201),
    ("POST", "/tollway/admin/keys", {**NEW, "role": "lead"}, 403, 201, 201),
    ("POST", "/tollway/admin/keys", {**NEW, "role": "admin"}, 403, 403, 201),
    ("POST", "/tollway/admin/keys", {"team": "rivals"}, 403, 403, 201),
    ("POST", "/tollway/admin/keys", {**NEW, "allowed_routes": ["/*"]}, 403, 400, 400),
    ("PATCH", "/tollway/admin/keys/MEMBER", {"budget": {"limit_nanos": 10**15}}, 403, 200, 200),
    ("PATCH", "/tollway/admin/keys/MEMBER", {"role": "admin"}, 403, 400, 400),
    ("PATCH", "/tollway/admin/keys/FOREIGN", {"name": "x"}, 403, 404, 200),
    ("DELETE", "/tollway/admin/keys/FOREIGN", None, 403, 404, 200),
    ("DELETE", "/tollway/admin/keys/nosuchkeyx", None, 403, 404, 404),
    ("GET", "/tollway/admin/policies", None, 403, 200, 200),
    ("GET", "/tollway/admin/budgets", None, 403, 200, 200),
    ("GET", "/tollway/admin/audit", None, 403, 403, 200),
    ("GET", "/tollway/admin/users", None, 403, 200, 200),
    ("POST", "/tollway/admin/users", {"subject": "new", "team": "plain"}, 403, 201, 201),
    ("POST", "/tollway/admin/users", {"subject": "new", "team": "rivals"}, 403, 403, 201),
    ("POST", "/tollway/admin/users", {"subject": "new", "admin": True}, 403, 403, 201),
    ("GET", "/tollway/admin/projects", None, 200, 200, 200),
    ("POST", "/tollway/admin/projects", {"team": "plain", "name": "web"}, 403, 201, 201),
    ("POST", "/tollway/admin/projects", {"team": "rivals", "name": "web"}, 403, 403, 201),
    ("DELETE", "/tollway/admin/projects/plain/web", None, 403, 200, 200),
    ("POST", "/tollway/admin/rerate", {"from": "2026-01-01", "to": "2026-01-02"}, 403, 403, 200),
]


@pytest.mark.parametrize(("method", "path", "body", "member", "lead", "admin"), RIGHTS)
def test_each_path_lets_in_whom_it_should(
    gate: Gateway, keys: dict[str, dict[str, Any]], method: str, path: str, body: Any, member: int, lead: int, admin: int
) -> None:
    """Refused unless allowed; what belongs to another team looks as if it were not there."""
    path = path.replace("MEMBER", keys["member"]["id"]).replace("FOREIGN", keys["foreign"]["id"])
    for role, status in (("member", member), ("lead", lead), ("admin", admin)):
        answer = gate.ask(method, path, keys[role]["key"], **({} if body is None else {"json": body}))
        assert answer.status_code == status, (role, answer.text)
        if role != "admin":
            assert "rivals" not in answer.text or path.endswith("rivals")


def test_a_list_holds_the_own_team_only(gate: Gateway, keys: dict[str, dict[str, Any]]) -> None:
    """A lead's keys, people and projects."""
    for path in ("keys", "projects"):
        rows = gate.ask("GET", f"/tollway/admin/{path}", keys["lead"]["key"]).json()
        assert {row["team"] for row in rows} <= {"plain"}


def test_people_come_by_token_or_through_the_proxy(gate: Gateway, keys: dict[str, dict[str, Any]], provider: Site) -> None:
    """Whom an admin has let in, as what they are in their team; others are told to ask."""
    added = gate.ask("POST", "/tollway/admin/users", json={"subject": "ann", "team": "plain", "role": "lead"}).json()
    assert added["issuer"] == provider.url
    me = gate.ask("GET", "/tollway/me", token("ann")).json()
    assert (me["team"], me["role"], me["user_id"]) == ("plain", "lead", added["id"])
    made = gate.ask("POST", "/tollway/admin/keys", token("ann"), json=NEW)
    assert made.status_code == 201
    assert gate.ask("POST", "/tollway/admin/keys", token("ann"), json={"team": "rivals"}).status_code == 403
    trail = gate.ask("GET", "/tollway/admin/audit").json()
    assert (trail[0]["actor"], trail[0]["action"], trail[0]["target"]) == (added["id"], "key.create", made.json()["id"])
    refused = gate.ask("GET", "/tollway/me", token("eve"))
    assert refused.status_code == 401
    assert "tollway users add" in refused.text
    assert gate.ask("GET", "/tollway/me", token("ann") + "x").status_code == 401

    gate.ask("POST", "/tollway/admin/users", json={"subject": "bob", "issuer": "proxy", "team": "plain"})
    bob = {"x-auth-user": "bob"}
    assert gate.http.get(gate.url + "/tollway/me", headers=bob).json()["role"] == "member"
    assert gate.http.get(gate.url + "/tollway/admin/keys", headers=bob).status_code == 403
    assert gate.http.get(gate.url + "/tollway/me", headers={"x-auth-user": "ann"}).status_code == 401
    assert gate.http.post(gate.url + "/v1/chat/completions", headers=bob, json=chat_body("m-roles")).status_code == 401


def test_a_disabled_person_is_out_at_once(gate: Gateway) -> None:
    person = gate.ask("POST", "/tollway/admin/users", json={"subject": "cyd", "team": "plain"}).json()
    assert gate.ask("GET", "/tollway/me", token("cyd")).status_code == 200
    assert gate.ask("DELETE", f"/tollway/admin/users/{person['id']}").status_code == 200
    assert gate.ask("GET", "/tollway/me", token("cyd")).status_code == 401


def test_the_proxys_header_counts_from_its_address_only(tmp_path: Path, site: Site) -> None:
    """From anywhere else it is as if it were not there, whatever other headers claim."""
    login = {"proxy_header": "x-auth-user", "proxy_addresses": ["10.9.9.9"]}
    with Gateway(tmp_path, {"backends": {"b": backend(site)}, "login": login}, {"plain": PLAIN}) as gateway:
        gateway.ask("POST", "/tollway/admin/users", json={"subject": "bob", "team": "plain"})
        headers = {"x-auth-user": "bob", "x-forwarded-for": "10.9.9.9", "x-real-ip": "10.9.9.9", "forwarded": "for=10.9.9.9"}
        assert httpx.get(gateway.url + "/tollway/me", headers=headers, trust_env=False).status_code == 401


def test_a_change_says_before_and_after(gate: Gateway, keys: dict[str, dict[str, Any]]) -> None:
    """In the audit trail, with who did it."""
    made = gate.make_key("plain", name="old")
    gate.ask("PATCH", f"/tollway/admin/keys/{made['id']}", keys["lead"]["key"], json={"name": "new"})
    row = gate.ask("GET", "/tollway/admin/audit?limit=1").json()[0]
    assert (row["actor"], row["action"], row["target"]) == (keys["lead"]["id"], "key.change", made["id"])
    assert (row["detail"]["before"]["name"], row["detail"]["after"]["name"]) == ("old", "new")
    assert "digest" not in json.dumps(row)


def test_a_key_may_be_narrowed_to_models(gate: Gateway, site: Site) -> None:
    """Below what the team's policy allows."""
    narrow = gate.make_key("plain", limits={"models": ["another-*"]})["key"]
    wide = gate.make_key("plain", limits={"models": ["m-*"]})["key"]
    refused = gate.ask("POST", "/v1/chat/completions", narrow, json=chat_body(site.model))
    assert refused.status_code == 403
    assert gate.ask("POST", "/v1/chat/completions", wide, json=chat_body(site.model)).status_code == 200
    listed = {key: [one["id"] for one in gate.ask("GET", "/v1/models", key).json()["data"]] for key in (narrow, wide)}
    assert site.model not in listed[narrow]
    assert site.model in listed[wide]
    assert [gate.ask("GET", f"/v1/models/{site.model}", key).status_code for key in (narrow, wide)] == [404, 200]


def test_a_key_has_a_budget_of_its_own(gate: Gateway, site: Site) -> None:
    """In a team without one: calls are paid from it, a spent one answers 402, a raised one lets calls through again."""
    made = gate.make_key("plain", budget={"limit_nanos": 1_000_000, "window": "day"})
    statuses = [gate.ask("POST", "/v1/chat/completions", made["key"], json=chat_body(site.model, max_tokens=5)).status_code for _ in range(8)]
    assert statuses[0] == 200
    assert statuses[-1] == 402
    gate.ask("PATCH", f"/tollway/admin/keys/{made['id']}", json={"budget": {"limit_nanos": 10**12, "window": "day"}})
    assert gate.ask("POST", "/v1/chat/completions", made["key"], json=chat_body(site.model, max_tokens=5)).status_code == 200


def test_the_commands_say_what_happened(gate: Gateway) -> None:
    """Keys with budget and models, people, projects and the trail from the command line."""
    env = {"TOLLWAY_URL": gate.url, "TOLLWAY_KEY": gate.admin_key}
    argv = ("keys", "create", "--team", "plain", "--project", "docs", "--budget", "2.50/day", "--models", "m-*,n", "--json")
    made = json.loads(command(*argv, env=env)[1])
    assert made["budget"] == {"limit_nanos": 2_500_000_000, "window": "day", "timezone": "UTC"}
    assert made["limits"] == {"models": ["m-*", "n"]}
    assert command("keys", "change", made["id"], "--budget", "7", env=env) == (0, f"key {made['id']} of team plain: budget changed\n")
    assert "docs" in command("projects", "list", env=env)[1]
    status, said = command("users", "add", "dee", "--team", "plain", "--role", "lead", env=env)
    assert status == 0, said
    user = said.split()[0]
    assert "plain (lead)" in said
    assert "dee" in command("users", "list", env=env)[1]
    assert command("users", "role", user, "plain", "none", env=env)[1].strip().endswith("no team")
    assert command("users", "disable", user, env=env)[0] == 0
    assert command("projects", "archive", "plain", "docs", env=env)[0] == 0
    trail = command("audit", env=env)[1]
    for word in ("key.create", "user.disable", "project.archive", "limit_nanos"):
        assert word in trail


@pytest.mark.parametrize("argv", [
    ("--budget", "-5"), ("--budget", "nan"), ("--budget", "1/year"), ("--budget", "0.0000000001"), ("--name", "x\x1b[2J"),
    ("--expires", "soon"),
])  # fmt: skip
def test_nonsense_makes_no_key(gate: Gateway, argv: tuple[str, str]) -> None:
    """Exit 2, and which option it was."""
    count = len(gate.ask("GET", "/tollway/admin/keys").json())
    status, said = command("keys", "create", "--team", "plain", *argv, env={"TOLLWAY_URL": gate.url, "TOLLWAY_KEY": gate.admin_key})
    assert (status, argv[0] in said) == (2, True), said
    assert len(gate.ask("GET", "/tollway/admin/keys").json()) == count
