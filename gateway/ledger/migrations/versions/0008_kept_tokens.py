"""How many tokens a stored answer has, with all that it goes on from: what goes on from it is reserved by that."""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "0008", "0007", None, None


def upgrade() -> None:
    known = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("kept")}
    if "tokens" not in known:
        op.add_column("kept", sa.Column("tokens", sa.BigInteger()))


def downgrade() -> None:
    with op.batch_alter_table("kept") as table:
        table.drop_column("tokens")
