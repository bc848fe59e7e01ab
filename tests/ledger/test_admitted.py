"""Keys that are good now, and people who are not disabled, with their teams."""
from __future__ import annotations

from pathlib import Path

from sqlalchemy import create_engine, insert

from gateway.ledger.admitted import Person
from gateway.ledger.registers import MEMBERSHIPS, USERS
from gateway.ledger.reports import connect
from gateway.ledger.tables import KEYS
from tests.ledger.generate import write

NOW = 1_764_000_000_000_000


def test_who_is_good_now_is_let_in_and_nobody_else(tmp_path: Path) -> None:
    """A key not revoked, not expired, known by its digest; a person not disabled, known by who vouches for them."""
    url = write(tmp_path / "ledger.db", [])
    keys = {"good": {}, "ending": {"expires_us": NOW + 1}, "over": {"expires_us": NOW}, "revoked": {"revoked_us": NOW - 1}}
    people = {"admin": {"admin": True}, "member": {"name": "Mia"}, "gone": {"disabled_us": NOW - 1}}
    engine = create_engine(url)
    with engine.begin() as connection:
        for name, how in keys.items():
            row = {"id": name, "digest": f"of {name}", "team": "search", "project": "web", "created_us": 1, **how}
            connection.execute(insert(KEYS).values(row))
        for name, how in people.items():
            row = {"id": name, "issuer": "https://id", "subject": name, "created_us": 1, "name": "", "admin": False, **how}
            connection.execute(insert(USERS).values(row))
        for team in ("support", "search"):
            connection.execute(insert(MEMBERSHIPS).values(user_id="member", team=team, role="member"))
    engine.dispose()
    report = connect(url)
    good = [name for name in keys if report.key_by_digest(f"of {name}", NOW)]
    assert good == ["good", "ending"]
    assert report.key_by_digest("of good", NOW) == {"id": "good", "team": "search", "project": "web", "name": "", "role": "member"}
    assert report.person("https://id", "admin") == Person("admin", True, ())
    assert report.person("https://id", "member") == Person("Mia", False, ("search", "support"))
    assert [report.person("https://id", "gone"), report.person("https://other", "member")] == [None, None]
    report.close()
