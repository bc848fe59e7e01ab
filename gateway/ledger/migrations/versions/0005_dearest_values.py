"""The dearest runs and tags without a look at all of them: what each cost, and an index of the roll-ups by value."""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "0005", "0004", None, None

TEXT, BIG = sa.String(), sa.BigInteger()
FILL = """
INSERT INTO rollup_values (dim, team, value, first_hour, last_hour, cost_nanos)
SELECT substr(dim, 1, length(dim) - length(',model,lane')) AS name, {team} AS of_team, v1,
  min(hour), max(hour), sum(coalesce(cost_nanos, 0))
FROM rollup WHERE dim = 'run,model,lane' OR dim LIKE 'tag:%' GROUP BY 1, 2, 3
"""


def key(name: str) -> sa.Column[Any]:
    return sa.Column(name, TEXT, primary_key=True, autoincrement=False)


def upgrade() -> None:
    figures = [sa.Column(name, BIG, nullable=False) for name in ("first_hour", "last_hour", "cost_nanos")]
    op.drop_table("rollup_values", if_exists=True)      # one that an earlier try left half-made
    op.create_table("rollup_values", key("dim"), key("team"), key("value"), *figures, sqlite_with_rowid=False)
    op.create_index("rollup_values_cost", "rollup_values", ["dim", "team", "cost_nanos"])
    for team in ("team", "''"):
        op.execute(FILL.format(team=team))
    if op.get_bind().dialect.name == "sqlite":
        op.create_index("rollup_value", "rollup", ["dim", "v1"])
        return
    with op.get_context().autocommit_block():
        op.drop_index("rollup_value", "rollup", if_exists=True)
        op.create_index("rollup_value", "rollup", ["dim", "v1"], postgresql_concurrently=True)


def downgrade() -> None:
    op.drop_index("rollup_value", "rollup")
    op.drop_table("rollup_values")
