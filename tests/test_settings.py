"""`tollway.yaml`: what is read, and errors that name the place and the way out."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.settings import SHIPPED_POLICIES, Settings, SettingsError, load
from router_policies.strict_yaml import BadFile

BACKEND = "backends:\n  b:\n    dialect: openai\n    url: https://api.example/v1/\n    key: env:K\n    models: [m]\n"


def read(folder: Path, text: str, **env: str) -> Settings:
    path = folder / "tollway.yaml"
    path.write_text(text)
    return load(path, env)


def test_little_is_needed(tmp_path: Path) -> None:
    """One backend; paths are relative to the file, secrets are looked up once and do not print."""
    settings = read(tmp_path, BACKEND + "policies: teams\nprices: [p.toml]\n", K="sk-1")
    assert settings.backend_keys["b"].reveal() == "sk-1"
    assert "sk-1" not in repr(settings)
    assert settings.backends["b"].url == "https://api.example/v1"
    assert (settings.policies, settings.prices) == (tmp_path / "teams", (tmp_path / "p.toml",))
    assert settings.database_url == f"sqlite:///{tmp_path}/.tollway/tollway.db"
    assert read(tmp_path, BACKEND, K="x").policies == SHIPPED_POLICIES


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    """Line end and all."""
    (tmp_path / "secret").write_text("sk-2\n")
    assert read(tmp_path, BACKEND.replace("env:K", "file:secret")).backend_keys["b"].reveal() == "sk-2"


ACCOUNTS = BACKEND.replace("key: env:K", "accounts: {x: {key: env:K}, y: {key: env:L, url: 'https://eu.example', region: eu}}")


def test_each_account_is_a_backend_of_its_own(tmp_path: Path) -> None:
    """With its key, address and region, priced as the one they belong to."""
    settings = read(tmp_path, ACCOUNTS, K="1", L="2")
    found = {name: (one.url, one.region, one.provider, settings.backend_keys[name].reveal()) for name, one in settings.backends.items()}
    assert found == {"b-x": ("https://api.example/v1", None, "b", "1"), "b-y": ("https://eu.example", "eu", "b", "2")}


def test_accounts_have_names_and_keys_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="b-x"):
        read(tmp_path, ACCOUNTS + BACKEND.removeprefix("backends:\n").replace("  b:", "  b-x:"), K="1", L="2")
    with pytest.raises(BadFile, match="accounts"):
        read(tmp_path, ACCOUNTS.replace("    models", "    key: env:K\n    models"), K="1", L="2")


@pytest.mark.parametrize(("text", "line", "words"), [
    pytest.param(BACKEND.replace("dialect:", "dialct:"), 3, ["dialct", "dialect"], id="a misspelt field"),
    pytest.param(BACKEND + "polices: x\n", 7, ["polices", "policies"], id="a misspelt field at the top"),
    pytest.param(BACKEND.replace("openai", "opnai"), 3, ["opnai", "openai"], id="a misspelt dialect"),
    pytest.param(BACKEND.replace("https://api.example/v1/", "api.example"), 4, ["https://"], id="no address"),
    pytest.param(BACKEND.replace("env:K", "sk-canary"), 5, ["env:"], id="a secret in the file"),
    pytest.param(BACKEND.replace("[m]", "[]"), 3, ["b", "models"], id="no model"),
    pytest.param(BACKEND.replace("    models: [m]\n", ""), 3, ["b", "models"], id="models left out"),
    pytest.param(BACKEND + "max_body_bytes: 0\n", 7, ["max_body_bytes"], id="zero"),
    pytest.param(BACKEND + "max_body_bytes: yes\n", 7, ["max_body_bytes"], id="a word for a number"),
    pytest.param(BACKEND + "max_body_bytes: true\n", 7, ["max_body_bytes"], id="true for a number"),
    pytest.param(BACKEND + "durability: pwer\n", 7, ["pwer", "power"], id="a misspelt word"),
    pytest.param(BACKEND + "drain_s: .inf\n", 7, ["drain_s"], id="for ever"),
    pytest.param(BACKEND + "data: a\ndata: b\n", 8, ["data"], id="a key twice"),
    pytest.param(BACKEND + "data: &a x\nprices: [*a]\n", 7, [], id="an alias"),
    pytest.param(BACKEND + "data: !!python/name:os.system x\n", 7, [], id="a tag"),
    pytest.param(BACKEND + "data: [\n", None, [], id="half a file"),
    pytest.param("- a\n", 1, [], id="a list"),
])  # fmt: skip
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, line: int | None, words: list[str]) -> None:
    """File, line and the nearest valid word; the value of what might be a secret is not repeated."""
    with pytest.raises(BadFile) as caught:
        read(tmp_path, text, K="x")
    said = str(caught.value)
    assert f"tollway.yaml:{line or ''}" in said
    assert all(word in said for word in words), said
    assert "canary" not in said


@pytest.mark.parametrize(("key", "env", "words"), [
    ("env:NOT_SET", {}, ["backends.b.key", "NOT_SET"]),
    ("env:EMPTY", {"EMPTY": ""}, ["backends.b.key", "EMPTY"]),
    ("file:nowhere", {}, ["backends.b.key", "nowhere"]),
    ("file:blank", {}, ["backends.b.key", "blank", "empty"]),
    ("env:ODD", {"ODD": "canary\r\nx: y"}, ["backends.b.key", "ODD"]),
])  # fmt: skip
def test_a_reference_that_leads_nowhere_is_named(tmp_path: Path, key: str, env: dict[str, str], words: list[str]) -> None:
    (tmp_path / "blank").write_text("\n")
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, BACKEND.replace("env:K", key), **env)
    assert all(word in str(caught.value) for word in words)
    assert re.match(rf"{re.escape(str(tmp_path))}/tollway\.yaml:5:\d+: backends\.b\.key: ", str(caught.value))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(("text", "line"), [
    ("backends: {a: {dialect: openai, url: 'http://x/v1', models: [m]}}\npassthrough:\n  /gemini: nobody\n", 3),
    ("data: d\nredis_url: redis://u:p@x\n", 2),
    ("backends:\n  a:\n    dialect: openai\n    url: http://x/v1\n    models: [m]\n    accounts: {eu: {key: env:NOPE}}\n", 2),
])  # fmt: skip
def test_what_is_wrong_has_a_line(tmp_path: Path, text: str, line: int) -> None:
    """Also what only shows when fields are put together; the nearest place, where the field is none of the file's."""
    with pytest.raises(SettingsError, match=rf"tollway\.yaml:{line}:"):
        read(tmp_path, text)


def test_a_model_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="once"):
        read(tmp_path, BACKEND.replace("models: [m]", "models: [m, m]"))


def test_a_placeholder_is_no_pepper(tmp_path: Path) -> None:
    """T19; and the refusal does not say what it read."""
    with pytest.raises(SettingsError, match="key_pepper") as refusal:
        read(tmp_path, BACKEND + "key_pepper: env:PEPPER\n", K="x", PEPPER="ChangeMe")
    assert "ChangeMe" not in str(refusal.value)


def test_an_empty_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="empty"):
        read(tmp_path, "# nothing\n")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.yaml"):
        load(tmp_path / "nothing.yaml")


def test_a_shared_queue_needs_a_shared_database(tmp_path: Path) -> None:
    """SQLite is one machine's."""
    (tmp_path / "tollway.yaml").write_text("queue: {store: database}\n")
    with pytest.raises(SettingsError, match="needs PostgreSQL"):
        load(tmp_path / "tollway.yaml")
