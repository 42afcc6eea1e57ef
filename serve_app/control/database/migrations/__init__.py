"""Steps from one version of the tables to the next, for alembic. `make migration` writes them."""
