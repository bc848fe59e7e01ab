"""Nobody looks without a key, except on a loopback address where the operator said so."""
from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import insert, update
from streamlit.testing.v1 import AppTest

from dashboard import data, login
from gateway.access.keys import digest, mint
from gateway.ledger.registers import MEMBERSHIPS, USERS
from gateway.ledger.reports import Reports
from gateway.ledger.sql import Store
from gateway.ledger.tables import KEYS
from tests.dashboard.opened import metrics, whole
from tests.ledger.generate import entry, write

PEPPER = "some pepper"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A function that makes a key in the ledger's database; two teams have one call each."""
    now = data.now_us() - 1_000_000
    url = write(tmp_path / "ledger.db", [entry(at_us=now), entry(id="a-2", call_id="c-2", team="other", at_us=now)])
    (tmp_path / "pepper").write_text(PEPPER + "\n")
    monkeypatch.setenv("TOLLWAY_DATABASE_URL", url)
    monkeypatch.setenv("TOLLWAY_PEPPER_FILE", str(tmp_path / "pepper"))
    monkeypatch.setenv("TOLLWAY_DASHBOARD_LOGIN", "keys")
    monkeypatch.setattr(login, "_WRONG_S", 0)

    def make(role: str = "member", **more: object) -> str:
        key_id, secret = mint()
        text = secret.reveal()
        row = {"id": key_id, "digest": digest(text, PEPPER.encode()), "team": "search", "name": "n", "role": role, "created_us": 0}
        execute(url, insert(KEYS).values(row | more))
        return text

    return make


def execute(url: str, statement: object) -> None:
    async def run() -> None:
        store = Store(url)
        async with store.begin() as connection:
            await connection.execute(statement)  # type: ignore[call-overload]
        await store.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, run()).result()


def opened(secret: str | None = None) -> AppTest:
    test = whole().run()
    if secret is not None:
        test.text_input[0].set_value(secret)
        test.button[0].click().run()
    assert not test.exception
    return test


def signed_in(secret: str) -> AppTest:
    """A further run of a session that signed in before."""
    test = whole()
    test.session_state["secret"] = secret
    return test.run()


def test_without_a_key_there_is_only_the_login(keys: Callable[..., str]) -> None:
    test = opened()
    assert not test.metric
    assert test.text_input[0].label == "Gateway key"


def test_an_admin_sees_all_and_a_member_its_team(keys: Callable[..., str]) -> None:
    assert metrics(opened(keys("admin")))["Calls"] == "2"
    assert metrics(opened(keys("member")))["Calls"] == "1"


@pytest.mark.parametrize("more", [{"expires_us": 1}, {"revoked_us": 1}])
def test_a_key_that_is_no_longer_good_opens_nothing(keys: Callable[..., str], more: dict[str, int]) -> None:
    test = opened(keys("admin", **more))
    assert not test.metric
    assert "not valid" in test.error[0].value


@pytest.mark.parametrize("secret", ["", "nonsense", "tw_aaaaaaaaaa_" + "A" * 43 + "000000", "' OR 1=1 --", "\ud800"])
def test_what_is_no_key_opens_nothing(keys: Callable[..., str], secret: str) -> None:
    assert data.verify(secret) is None


def test_a_key_revoked_while_looking_shuts_the_page(keys: Callable[..., str]) -> None:
    """Rights are read at every run."""
    secret = keys("admin")
    assert metrics(signed_in(secret))["Calls"] == "2"
    execute(data.database_url(), update(KEYS).values(revoked_us=1))
    test = signed_in(secret)
    assert not test.metric
    assert "no longer valid" in test.warning[0].value


def test_login_off_counts_on_loopback_only(keys: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound to anything else the login stays."""
    monkeypatch.setenv("TOLLWAY_DASHBOARD_LOGIN", "off")
    for address, open_ in (("127.0.0.1", True), ("0.0.0.0", False), (None, False)):
        monkeypatch.setattr("streamlit.get_option", lambda name, address=address: address if name == "server.address" else None)
        assert bool(opened().metric) == open_, address


def test_without_a_pepper_no_key_can_be_checked(keys: Callable[..., str], monkeypatch: pytest.MonkeyPatch, look: Callable[[str], Reports]) -> None:
    """And the page says what is missing."""
    secret = keys("admin")
    monkeypatch.delenv("TOLLWAY_PEPPER_FILE")
    test = opened(secret)
    assert not test.metric
    assert "TOLLWAY_PEPPER_FILE" in test.caption[-1].value



def test_a_key_of_a_project_sees_that_project(keys: Callable[..., str]) -> None:
    """Its figures, and none of the rest of its team."""
    assert data.verify(keys(project="web")) == data.Viewer("search", "n", "web")
    assert data.Viewer("search", "n", "web").where == {"team": "search", "project": "web"}
    assert metrics(opened(keys(project="web"))) == {}       # the team's one call has no project


@pytest.mark.parametrize(("claims", "sees"), [
    pytest.param({"iss": "https://id.test", "sub": "ann"}, {"search"}, id="a member of one team"),
    pytest.param({"iss": "https://id.test", "sub": "root"}, {"search", "other"}, id="an admin"),
    pytest.param({"iss": "https://evil.test", "sub": "root"}, None, id="another provider's word"),
    pytest.param({"iss": "https://id.test", "sub": "gone"}, None, id="disabled"),
    pytest.param({"iss": "https://id.test", "sub": ""}, None, id="nobody"),
])  # fmt: skip
def test_people_see_what_the_list_of_people_says(
    keys: Callable[..., str], monkeypatch: pytest.MonkeyPatch, claims: dict[str, str], sees: set[str] | None
) -> None:
    """Whatever else the provider says of them."""
    url = data.database_url()
    for name, more in (("ann", {}), ("root", {"admin": True}), ("gone", {"disabled_us": 1, "admin": True})):
        row = {"id": name, "issuer": "https://id.test", "subject": name, "name": name, "admin": False, "created_us": 0, **more}
        execute(url, insert(USERS).values(row))
    execute(url, insert(MEMBERSHIPS).values(user_id="ann", team="search", role="lead"))
    monkeypatch.setenv("TOLLWAY_DASHBOARD_SECRETS", "somewhere")
    monkeypatch.setattr("streamlit.user", SimpleNamespace(is_logged_in=True, to_dict=lambda: {**claims, "role": "admin"}))
    test = opened()
    if sees is None:
        assert not test.metric
        assert "not let in" in test.warning[0].value
    else:
        assert metrics(test)["Calls"] == str(len(sees))


def test_an_address_that_is_not_verified_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLWAY_DASHBOARD_CLAIM", "email")
    assert login._subject({"email": "a@x.test"}) == ""
    assert login._subject({"email": "a@x.test", "email_verified": True}) == "a@x.test"
