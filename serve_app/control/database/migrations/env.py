"""Alembic runs this for every command, on a connection whose transaction is begun and ended elsewhere."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=context.config.attributes["metadata"],
    render_as_batch=True,  # SQLite changes a table by rebuilding it
    compare_type=True,
    transaction_per_migration=False,
)
context.run_migrations()
