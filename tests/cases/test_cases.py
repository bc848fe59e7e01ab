"""The collected cases of real users' faults, each against a gateway process: what they say must hold, not how."""
from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

CASES = Path(__file__).parents[3] / "shared" / "cases"
TOOLS = CASES / "tools"


def _cases() -> list[Any]:
    if not TOOLS.is_dir():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"no cases at {CASES}"), id="none")]
    sys.path.insert(0, str(TOOLS))
    library = importlib.import_module("caselib")
    return [pytest.param(case, id=case["id"]) for _, case in library.iter_cases(str(CASES))]


@pytest.mark.parametrize("case", _cases())
def test_the_case_holds(case: dict[str, Any]) -> None:
    """Client, upstream, ledger, budgets, logs: as the case says. What the product has not yet is skipped by name."""
    adapter = importlib.import_module("tests.cases.adapter").Forking()
    missing = set(case["needs"]) - set(adapter.supports)
    if missing:
        pytest.skip(f"not built yet: {', '.join(sorted(missing))}")
    assert importlib.import_module("drive").Run(case, adapter).go() == []
