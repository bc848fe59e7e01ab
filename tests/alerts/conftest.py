"""Ledgers with something to tell."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.ledger.reports import Reports, connect
from tests.ledger.generate import write


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Any]:
    """A function from entries to reports on them."""
    opened: list[Reports] = []

    def make(some: list[Any]) -> Reports:
        opened.append(connect(write(tmp_path / "ledger.db", some)))
        return opened[-1]

    yield make
    for report in opened:
        report.close()
