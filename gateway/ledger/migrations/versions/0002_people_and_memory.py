"""People, projects, kept answers and idempotency keys; keys know their person, their limits and when they changed."""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision, down_revision, branch_labels, depends_on = "0002", "0001", None, None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")
TEXT, BIG = sa.String(), sa.BigInteger()


def upgrade() -> None:
    op.add_column("keys", sa.Column("user_id", TEXT))
    op.add_column("keys", sa.Column("limits", JSON))
    op.add_column("keys", sa.Column("changed_us", BIG, nullable=False, server_default="0"))
    op.create_index("ix_keys_changed_us", "keys", ["changed_us"])
    op.create_table(
        "users",
        sa.Column("id", TEXT, primary_key=True),
        sa.Column("issuer", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("admin", sa.Boolean(), nullable=False),
        sa.Column("created_us", BIG, nullable=False),
        sa.Column("disabled_us", BIG),
        sa.UniqueConstraint("issuer", "subject", name="users_issuer_subject"),
    )
    op.create_table(
        "memberships",
        sa.Column("user_id", TEXT, primary_key=True),
        sa.Column("team", TEXT, primary_key=True),
        sa.Column("role", TEXT, nullable=False),
    )
    op.create_table(
        "projects",
        sa.Column("team", TEXT, primary_key=True),
        sa.Column("name", TEXT, primary_key=True),
        sa.Column("created_us", BIG, nullable=False),
        sa.Column("archived_us", BIG),
    )
    op.create_table(
        "kept",
        sa.Column("name", TEXT, primary_key=True),
        sa.Column("team", TEXT, nullable=False),
        sa.Column("backend", TEXT, nullable=False),
        sa.Column("at_us", BIG, nullable=False, index=True),
        sa.Column("pending", JSON),
    )
    op.create_table(
        "idempotency",
        sa.Column("team", TEXT, primary_key=True),
        sa.Column("key", TEXT, primary_key=True),
        sa.Column("fingerprint", TEXT, nullable=False),
        sa.Column("call_id", TEXT, nullable=False),
        sa.Column("at_us", BIG, nullable=False),
        sa.Column("expires_us", BIG, nullable=False, index=True),
        sa.Column("status", sa.Integer()),
        sa.Column("headers", JSON),
        sa.Column("answer", sa.LargeBinary()),
    )


def downgrade() -> None:
    for name in ("idempotency", "kept", "projects", "memberships", "users"):
        op.drop_table(name)
    op.drop_index("ix_keys_changed_us", "keys")
    for name in ("changed_us", "limits", "user_id"):
        op.drop_column("keys", name)
