"""Where reports are tried: a SQLite file and a real PostgreSQL."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
