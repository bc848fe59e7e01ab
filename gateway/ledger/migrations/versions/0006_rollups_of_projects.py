"""Roll-ups of each project, and the dearest runs and tags within a model, a lane or both.

They need no other tables, only more rows: all are made again from the ledger, and until then reports read the ledger itself. No
release had those of 0005.
"""
from __future__ import annotations

from alembic import op

revision, down_revision, branch_labels, depends_on = "0006", "0005", None, None

KEPT = ("rollup", "rollup_latency", "rollup_values", "rollup_state")


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"TRUNCATE {', '.join(KEPT)}")
        return
    for table in KEPT:
        op.execute(f"DELETE FROM {table}")


def downgrade() -> None:
    upgrade()
