"""Roll-ups by three values, so that figures can be narrowed by model and lane; an index of entries that missed a cache.

They are sums of the ledger and made again from it: the tables of 0003, which no release had, are replaced.
"""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "0004", "0003", None, None

TEXT, BIG, SMALL = sa.String(), sa.BigInteger(), sa.SmallInteger()
CALLS = (
    "entries", "calls", "calls_backend", "calls_lane", "calls_backend_lane", "calls_provider", "calls_status", "calls_miss",
)  # fmt: skip
FINER = ("calls_lane_status", "calls_lane_miss")
SUMS = (
    "attempts", "failed", "retries", "unpriced", "estimated", "uncached", "cache_read", "write_5m", "write_1h", "write_30m",
    "write_12h", "write_unknown", "output", "reasoning", "expected", "missed", "predicted_read", "expected_read",
    "uncached_nanos", "cache_read_nanos", "cache_write_nanos", "output_nanos",
)  # fmt: skip


def make(places: tuple[str, ...], counts: tuple[str, ...]) -> None:
    op.drop_table("rollup")
    op.drop_table("rollup_latency")
    op.execute("DELETE FROM rollup_state")
    key: list[tuple[str, Any]] = [("dim", TEXT), ("team", TEXT), ("hour", BIG), *[(place, TEXT) for place in places]]
    op.create_table(
        "rollup",
        *[sa.Column(name, kind, primary_key=True, autoincrement=False) for name, kind in key],
        *[sa.Column(name, BIG, nullable=False) for name in counts],
        *[sa.Column(name, BIG) for name in ("cost_nanos", "uncached_cost_nanos")],
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rollup_latency",
        *[sa.Column(name, kind, primary_key=True, autoincrement=False) for name, kind in [("of", TEXT), *key, ("bin", SMALL)]],
        sa.Column("n", BIG, nullable=False),
        sqlite_with_rowid=False,
    )


def upgrade() -> None:
    make(("v1", "v2", "v3"), (*CALLS, *FINER, *SUMS))
    missed = sa.text("miss IS NOT NULL")
    if op.get_bind().dialect.name == "sqlite":
        op.create_index("ledger_missed_at", "ledger", ["at_us"], sqlite_where=missed)
        return
    with op.get_context().autocommit_block():
        op.drop_index("ledger_missed_at", "ledger", if_exists=True)     # one that an earlier try left half-made
        op.create_index("ledger_missed_at", "ledger", ["at_us"], postgresql_where=missed, postgresql_concurrently=True)


def downgrade() -> None:
    op.drop_index("ledger_missed_at", "ledger")
    make(("v1", "v2"), (*CALLS, *SUMS))
