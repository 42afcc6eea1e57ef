"""The launcher's settings for the supervisor: one JSON file in the cluster's private folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class HaproxySettings:
    """How HAProxy runs. Lines of rules and of `errors` are in HAProxy's language, without indentation."""

    host: str  # where HTTP listens; every other socket of HAProxy is on loopback
    request_rules: tuple[str, ...] = ()  # rules of the HTTP frontend, before Ray's
    errors: tuple[str, ...] = ()  # the answers of HAProxy itself
    starting_rules: tuple[str, ...] = ()  # while no application has a route
    missing_rules: tuple[str, ...] = ()  # for a path that no application has
    # A request waits this long while no gateway can be asked. The replacement of a gateway takes less, even
    # on a loaded machine.
    wait_s: int = 5
    # A client has this long to send the line and all headers of a request, and as long for the first
    # request of a connection.
    headers_s: int = 10
    # A client that has to send or to read something may pause for this long. The gateway gives up earlier,
    # and says why. A client that waits for an answer, or for more of it, may wait for hours.
    client_s: int = 60

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises OSError or ValueError."""
        read = json.loads(path.read_text())
        fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in read.items()}
        return cls(**fields)
