"""What was held for an attempt whose cost is not known, so that budgets count it after a restart too; the conversation that a
call belongs to."""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "0007", "0006", None, None

HELD = sa.text("held_nanos IS NOT NULL")


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.add_column("ledger", sa.Column("held_nanos", sa.BigInteger()))
        op.add_column("ledger", sa.Column("session", sa.String()))
        op.create_index("ledger_held", "ledger", ["team", "at_us"], sqlite_where=HELD)
        return
    with op.get_context().autocommit_block():       # a try before may have broken off anywhere
        op.add_column("ledger", sa.Column("held_nanos", sa.BigInteger()), if_not_exists=True)
        op.add_column("ledger", sa.Column("session", sa.String()), if_not_exists=True)
        op.drop_index("ledger_held", "ledger", if_exists=True)
        op.create_index("ledger_held", "ledger", ["team", "at_us"], postgresql_where=HELD, postgresql_concurrently=True)


def downgrade() -> None:
    op.drop_index("ledger_held", "ledger")
    with op.batch_alter_table("ledger") as table:
        table.drop_column("held_nanos")
        table.drop_column("session")
