"""Writes the step from the newest migration to the tables as they are declared now: `make migration`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData

from serve_app.control import counters
from serve_app.control.database.migrate import FOLDER, config, upgrade
from serve_app.control.database.tables import Table
from serve_app.control.database.url import open_engine
from serve_app.control.endpoints import tables as endpoints
from serve_app.control.keys import tables as keys
from serve_app.control.ledger import tables as ledger
from serve_app.control.responses import tables as responses
from serve_app.control.rollouts import tables as rollouts

# Importing an area's module declares its tables, so that a migration sees all of them.
MODULES: Final = (counters, endpoints, keys, ledger, responses, rollouts)
METADATA: Final[MetaData] = Table.metadata


def write_migration(message: str) -> list[Path]:
    """Write the step, and return its file, or None if nothing changed. Read it before you commit it."""
    engine = open_engine("sqlite://")
    upgrade(engine)
    with engine.begin() as connection:
        settings = config(connection, METADATA)
        number = len(list(ScriptDirectory.from_config(settings).walk_revisions())) + 1
        written = command.revision(
            settings,
            message,
            autogenerate=True,
            rev_id=f"{number:04d}",
            process_revision_directives=_drop_empty,
        )
    scripts = written if isinstance(written, list) else [written]
    return [Path(script.path) for script in scripts if script is not None]


def _drop_empty(context: object, revision: object, directives: list) -> None:  # type: ignore[type-arg]
    if directives and directives[0].upgrade_ops.is_empty():
        directives.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("message", help="what changes, in a few words")
    parser.add_argument("--from-scratch", action="store_true", help="one step for all, before a release")
    arguments = parser.parse_args()
    if arguments.from_scratch:
        for path in FOLDER.glob("versions/0*.py"):
            path.unlink()
    for path in write_migration(arguments.message):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not line.lstrip().startswith("# ###")))
        for tidy in (["format", "--quiet"], ["check", "--fix", "--quiet"]):
            subprocess.run([sys.executable, "-m", "ruff", *tidy, str(path)], check=True)
        print(f"{path}: read it, then run tests/unit/control/database")


if __name__ == "__main__":
    main()
