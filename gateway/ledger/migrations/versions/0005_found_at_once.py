"""What is asked for is found without a look at all there is: the dearest runs and tags, calls by the start of their id in any
collation, the runs that a run started."""
from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "0005", "0004", None, None

TEXT, BIG = sa.String(), sa.BigInteger()
Index = tuple[str, list[str], dict[str, Any]]
"""Table, columns, and how."""
STARTED = sa.text("parent_run IS NOT NULL")
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
    made: dict[str, Index] = {
        "rollup_value": ("rollup", ["dim", "v1"], {}),
        "ledger_call_id": ("ledger", ["call_id"], {"postgresql_ops": {"call_id": "text_pattern_ops"}}),
        "ledger_parent_run": ("ledger", ["parent_run"], {"postgresql_where": STARTED, "sqlite_where": STARTED}),
    }
    replace(made, ["ix_ledger_call_id"])


def downgrade() -> None:
    replace({"ix_ledger_call_id": ("ledger", ["call_id"], {})}, ["ledger_call_id", "ledger_parent_run", "rollup_value"])
    op.drop_table("rollup_values")


def replace(made: dict[str, Index], dropped: list[str]) -> None:
    """Indexes, built beside the traffic where the database can."""
    if op.get_bind().dialect.name == "sqlite":
        for name, (table, columns, how) in made.items():
            op.create_index(name, table, columns, **how)
        for name in dropped:
            op.drop_index(name)
        return
    with op.get_context().autocommit_block():
        for name, (table, columns, how) in made.items():
            op.drop_index(name, table, if_exists=True)      # one that an earlier try left half-made
            op.create_index(name, table, columns, postgresql_concurrently=True, **how)
        for name in dropped:
            op.drop_index(name, if_exists=True, postgresql_concurrently=True)
