"""Who may import whom, what a start does not load, and a test file for every source file."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [path.relative_to(ROOT) for name in ("gateway", "router_policies", "inference", "dashboard") for path in (ROOT / name).rglob("*.py")]
HEAVY = ("torch", "numpy", "streamlit", "tiktoken", "alembic", "redis", "pandas", "plotly")
WITHOUT = {
    "gateway/app.py": "each test in tests/flow starts it",
    "gateway/audit.py": "tests/flow/test_roles.py reads the trail",
    "gateway/attempt.py": "tests/flow/test_faults.py is its table",
    "gateway/batches/collected.py": "tests/batches/test_worker.py", "gateway/batches/handover.py": "tests/batches/test_worker.py",
    "gateway/batches/shared_book.py": "tests/batches/test_book.py", "gateway/batches/turn.py": "tests/batches/test_replicas.py",
    "gateway/batches/pacing.py": "tests/batches/test_worker.py", "gateway/batches/ready.py": "tests/batches/test_worker.py",
    "gateway/booking.py": "tests/flow/test_faults.py looks at what it books",
    "gateway/budgets/calendar.py": "tests/budgets/test_machine.py", "gateway/budgets/posts.py": "tests/contracts/test_budgets.py",
    "gateway/caching.py": "tests/flow/test_caching.py",
    "gateway/cli.py": "names the commands, which have their own",
    "gateway/corrections.py": "tests/flow/test_budgets.py: a re-rating counts at once",
    "gateway/counting.py": "tests/flow",
    "gateway/first_keys.py": "tests/flow/test_process.py: keys and files of a first start",
    "gateway/holds.py": "tests/flow/test_policy.py",
    "gateway/idempotency.py": "tests/flow/test_idempotency.py", "gateway/memory_table.py": "tests/flow/test_idempotency.py and test_responses.py",
    "gateway/key_table.py": "tests/flow/test_process.py starts again on its rows",
    "gateway/late.py": "tests/flow/test_responses.py: background answers",
    "gateway/leash.py": "tests/test_up.py",
    "gateway/metrics.py": "tests/flow/test_front.py reads what it renders",
    "gateway/passage.py": "tests/flow",
    "gateway/people_table.py": "tests/flow/test_roles.py",
    "gateway/pipeline.py": "tests/flow is about nothing else", "gateway/planning.py": "tests/flow/test_policy.py",
    "gateway/progress.py": "tests/flow/test_process.py: a stream that was killed",
    "gateway/relay.py": "tests/flow/test_hang_up.py",
    "gateway/serve.py": "tests/flow/test_process.py", "gateway/settings_file.py": "tests/test_settings.py",
    "gateway/services.py": "fields only",
    "gateway/stores.py": "tests/flow/test_process.py, test_replicas.py and tests/workers start on each kind",
    "gateway/spent.py": "tests/flow/test_budgets.py: what was spent before a start",
    "gateway/watch.py": "tests/flow/test_replicas.py",
    "gateway/backends/exchange.py": "tests/backends/test_wire.py: the two are one client",
    "gateway/backends/fleet.py": "tests/flow/test_policy.py sees its lanes",
    "gateway/backends/http.py": "tests/backends/test_wire.py speaks through it",
    "gateway/normalize/system.py": "tests/normalize/test_billing.py has its shapes",
    "gateway/normalize/view.py": "tests/normalize/views.py checks it on every request of those tests",
    "gateway/planner/asking.py": "tests/planner/test_planner.py reads what is asked for", "gateway/planner/values.py": "fields only",
    "gateway/workers/errors.py": "tests/workers/test_supervisor.py", "gateway/workers/far.py": "tests/workers/test_supervisor.py",
    "gateway/workers/house.py": "tests/workers/test_supervisor.py",
    "gateway/web/door.py": "tests/flow, tests/web/test_guard.py", "gateway/web/turn.py": "tests/web/test_door.py",
    "gateway/web/admin.py": "tests/flow/test_front.py", "gateway/web/errors.py": "tests/flow/test_front.py",
    "gateway/web/books.py": "tests/test_rerate.py and tests/reconcile ask through it",
    "gateway/web/front.py": "tests/flow/test_front.py", "gateway/web/health.py": "tests/flow/test_front.py",
    "gateway/web/people.py": "tests/flow/test_roles.py", "gateway/web/sign_in.py": "tests/flow/test_roles.py",
    "gateway/web/routes.py": "tests/flow/test_front.py and test_relay.py",
}  # fmt: skip
"""Source files that are tested through the whole gateway, and where."""
THEIRS = ("gateway/backends/engines", "gateway/commands", "gateway/core", "gateway/demo", "gateway/dialects", "gateway/budgets", "gateway/ledger", "gateway/metering", "gateway/reconcile",
          "dashboard", "inference", "router_policies")  # fmt: skip
"""Folders whose tests are laid out by what they promise rather than by file."""


def test_imports_go_one_way() -> None:
    """The contracts of pyproject.toml hold."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["gateway.app", "gateway.serve", "gateway.cli"])
def test_a_start_loads_nothing_heavy(module: str) -> None:
    """No torch, no Streamlit, no tokenizer: the gateway starts in a blink and stays small."""
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_source_file_has_its_tests() -> None:
    """`gateway/web/guard.py` has `tests/web/test_guard.py`; what has none is listed above, with the reason."""
    missing = []
    for path in SOURCES:
        if path.name == "__init__.py" or path.as_posix().startswith(THEIRS) or path.as_posix() in WITHOUT:
            continue
        own = ROOT / "tests" / Path(*path.parts[1:]).with_name(f"test_{path.name}")
        if not own.exists():
            missing.append(path.as_posix())
    assert missing == []


def test_the_list_of_exceptions_is_not_longer_than_needed() -> None:
    """Nothing stands in it that is gone."""
    assert [name for name in WITHOUT if not (ROOT / name).exists()] == []
