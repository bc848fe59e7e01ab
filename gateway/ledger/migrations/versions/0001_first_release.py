"""The tables of the first release. Databases made by it are taken over at this revision."""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision, down_revision, branch_labels, depends_on = "0001", None, None, None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")
TEXT, WHOLE, BIG = sa.String(), sa.Integer(), sa.BigInteger()
LEDGER: tuple[tuple[str, Any, bool], ...] = (
    ("call_id", TEXT, False), ("attempt", WHOLE, False), ("at_us", BIG, False), ("kind", TEXT, False), ("corrects", TEXT, True),
    ("team", TEXT, False), ("project", TEXT, True), ("key_id", TEXT, False), ("client", TEXT, False), ("run", TEXT, True),
    ("parent_run", TEXT, True), ("subgoal", TEXT, True), ("tags", JSON, False), ("dialect", TEXT, False),
    ("stream", sa.Boolean(), False), ("model", TEXT, False), ("upstream_model", TEXT, False), ("served_model", TEXT, True),
    ("backend", TEXT, False), ("provider", TEXT, False), ("lane", TEXT, False), ("served_tier", TEXT, True),
    ("latency_class", TEXT, False), ("policy_version", TEXT, False), ("reason", TEXT, False), ("decision", JSON, False),
    ("receipts", JSON, False), ("status", TEXT, False), ("http_status", WHOLE, True), ("error", TEXT, True),
    ("first_token_ms", sa.Float(), True), ("total_ms", sa.Float(), False), ("uncached", BIG, True), ("cache_read", BIG, True),
    ("write_5m", BIG, True), ("write_1h", BIG, True), ("write_30m", BIG, True), ("write_12h", BIG, True),
    ("write_unknown", BIG, True), ("output", BIG, True), ("reasoning", BIG, True), ("other", JSON, False),
    ("flags", JSON, False), ("tokens_from", TEXT, False), ("predicted_read_tokens", BIG, True), ("miss", JSON, True),
    ("cost_nanos", BIG, True), ("uncached_cost_nanos", BIG, True), ("price_rows", JSON, False),
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "ledger",
        sa.Column("id", TEXT, primary_key=True),
        *(sa.Column(name, kind, nullable=nullable) for name, kind, nullable in LEDGER),
    )
    for name in ("at_us", "call_id", "corrects", "run"):
        op.create_index(f"ix_ledger_{name}", "ledger", [name])
    op.create_index("ledger_team_at", "ledger", ["team", "at_us"])
    op.create_index("ledger_model_at", "ledger", ["model", "at_us"])
    op.create_table(
        "keys",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("digest", TEXT, nullable=False, unique=True),
        sa.Column("team", TEXT, nullable=False, index=True),
        sa.Column("project", TEXT),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("budget", JSON),
        sa.Column("created_us", BIG, nullable=False),
        sa.Column("expires_us", BIG),
        sa.Column("revoked_us", BIG),
    )
    op.create_table(
        "audit",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("at_us", BIG, nullable=False, index=True),
        sa.Column("actor", TEXT, nullable=False),
        sa.Column("action", TEXT, nullable=False),
        sa.Column("target", TEXT, nullable=False),
        sa.Column("detail", JSON, nullable=False),
    )
    op.create_table(
        "schema_version", sa.Column("version", WHOLE, primary_key=True), sa.Column("at_us", BIG, nullable=False)
    )


def downgrade() -> None:
    raise NotImplementedError("there is no release before the first")
