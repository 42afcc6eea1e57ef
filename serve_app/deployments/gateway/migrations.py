"""Counts answers that moved to another replica, and logs each."""

from __future__ import annotations

import logging
from typing import Final

logger = logging.getLogger(__name__)

# Causes of a move, besides those of the channel (see `channel/inbox.py`).
ENGINE: Final = "engine"  # the engine stopped, and its process lives
LEAVING: Final = "leaving"  # the replica is stopping


class Migrations:
    """The number of moved answers, by application and cause."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    def add(self, app: str, cause: str, request_id: str, num_tokens: int, age_s: float) -> None:
        """Record that an answer moved, `num_tokens` tokens and `age_s` seconds after its start."""
        self.counts[app, cause] = self.counts.get((app, cause), 0) + 1
        fields = {
            "request": request_id,
            "application": app,
            "cause": cause,
            "tokens": num_tokens,
            "age_s": round(age_s, 3),
        }
        logger.warning(
            "request %s went on in another replica (%s)", request_id, cause, extra={"fields": fields}
        )
