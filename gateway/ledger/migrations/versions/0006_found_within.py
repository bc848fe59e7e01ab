"""The dearest runs and tags within a model, a lane or both are found without a look at all there are.

`rollup_values` gets rows for them, made from `rollup`; a row's `dim` then holds the model and the lane too (`rollup_tables.within`).
"""
from __future__ import annotations

from alembic import op

revision, down_revision, branch_labels, depends_on = "0006", "0005", None, None

WITHIN = "\x02"
FILL = """
INSERT INTO rollup_values (dim, team, value, first_hour, last_hour, cost_nanos)
SELECT substr(dim, 1, length(dim) - length(',model,lane')) || '{within}' || {model} || '{within}' || {lane} AS name, {team} AS of_team, v1,
  min(hour), max(hour), sum(coalesce(cost_nanos, 0))
FROM rollup WHERE dim = 'run,model,lane' OR dim LIKE 'tag:%' GROUP BY 1, 2, 3
"""


def upgrade() -> None:
    downgrade()     # rows that an earlier try left
    for model, lane in (("v2", "''"), ("''", "v3"), ("v2", "v3")):
        for team in ("team", "''"):
            op.execute(FILL.format(within=WITHIN, model=model, lane=lane, team=team))


def downgrade() -> None:
    op.execute(f"DELETE FROM rollup_values WHERE dim LIKE '%{WITHIN}%'")
