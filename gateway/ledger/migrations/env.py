"""Alembic's door, opened by `gateway.ledger.schema` with a connection; `alembic` on its own is not used."""
from __future__ import annotations

from alembic import context

from gateway.ledger import registers
from gateway.ledger.tables import Tables

assert registers.USERS.metadata is Tables.metadata
connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Tables.metadata,
    transaction_per_migration=True,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
