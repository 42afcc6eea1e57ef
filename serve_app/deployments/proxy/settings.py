"""What the launcher tells the supervisor: one JSON file in the cluster's private folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Settings:
    """How HAProxy is run. Lines of `*_rules` and `errors` are HAProxy's, without indentation."""

    host: str  # where HTTP listens; everything else of HAProxy's listens on loopback
    request_rules: tuple[str, ...] = ()  # of the HTTP frontend, before Ray's
    errors: tuple[str, ...] = ()  # what HAProxy itself answers
    starting_rules: tuple[str, ...] = ()  # while no application has a route
    missing_rules: tuple[str, ...] = ()  # for a path that no application has

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises OSError or ValueError."""
        return cls(
            **{k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(path.read_text()).items()}
        )
