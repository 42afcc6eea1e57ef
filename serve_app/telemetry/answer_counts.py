"""How often and how long one served entity answered."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final

CANCELLED: Final = "cancelled"  # the client left


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCounts:
    """How many answers of one served entity went through this gateway, and how long they took."""

    successes: int = 0
    success_s: float = 0.0
    failures: int = 0
    failure_s: float = 0.0
    last: float = 0.0  # Unix seconds of the last answer; 0: none yet
    refused: int = 0  # of the failures: 4xx
    cancelled: int = 0  # of the failures: the client left

    def and_one(self, seconds: float, status: str) -> AnswerCounts:
        """These counts plus one more answer, which has just ended.

        `status`: an HTTP status, "cancelled", or the condition that broke a stream.
        """
        last = time.time()
        if status == "200":
            return replace(self, successes=self.successes + 1, success_s=self.success_s + seconds, last=last)
        return replace(
            self,
            failures=self.failures + 1,
            failure_s=self.failure_s + seconds,
            last=last,
            refused=self.refused + (status.startswith("4")),
            cancelled=self.cancelled + (status == CANCELLED),
        )

    @property
    def answers(self) -> int:
        return self.successes + self.failures

    @property
    def errors(self) -> int:
        """Failures of the server: 5xx, and streams that broke."""
        return self.failures - self.refused - self.cancelled
