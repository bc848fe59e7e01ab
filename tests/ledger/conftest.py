"""Where reports are tried: a SQLite file and a real PostgreSQL."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.ledger import Entry
from gateway.ledger.reports import Reports, connect
from tests.ledger.generate import write
from tests.ledger.postgres import Postgres, binaries


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    bin_dir = binaries()
    if bin_dir is None:
        pytest.skip("no PostgreSQL: install the test extra")
    server = Postgres(bin_dir)
    yield server.url
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def ledger(place: str) -> Iterator[Callable[..., Reports]]:
    """A function from entries to reports on them."""
    opened: list[Reports] = []

    def make(*some: Entry) -> Reports:
        opened.append(connect(write(place, some)))
        return opened[-1]

    yield make
    for report in opened:
        report.close()
