"""The running requests, and the tokens that they used since the last call of `take`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from serve_app.telemetry import EntityName
from serve_app.types import Usage


class Working(Protocol):
    """An admitted request."""

    @property
    def who(self) -> EntityName:
        """The endpoint, and the entity that answers or was tried last."""
        ...

    @property
    def usage(self) -> Usage:
        """The work that was done so far."""
        ...


@dataclass(slots=True)
class TokenCounts:
    """Tokens of one served entity."""

    prompt: int = 0
    generated: int = 0


class UnderWay:
    """The admitted requests of one gateway. The time of `take` is proportional to their number."""

    def __init__(self) -> None:
        self._counted: dict[Working, Usage] = {}  # -> its usage at the last `take`
        self._used: dict[EntityName, TokenCounts] = {}  # since the last `take`

    def begin(self, request: Working) -> None:
        self._counted[request] = Usage()

    def end(self, request: Working) -> None:
        self._count(request)
        del self._counted[request]

    def in_flight(self) -> Counter[EntityName]:
        """The number of running requests per entity."""
        return Counter(request.who for request in self._counted)

    def take(self) -> dict[EntityName, TokenCounts]:
        """The tokens used since the last call. Entities that used no tokens are left out."""
        for request in self._counted:
            self._count(request)
        used, self._used = self._used, {}
        return used

    def _count(self, request: Working) -> None:
        usage, before = request.usage, self._counted[request]
        if usage is before or usage == before:
            return
        self._counted[request] = usage
        counts = self._used.setdefault(request.who, TokenCounts())
        # The usage of an answer that starts over elsewhere falls: the former tokens stay counted.
        counts.prompt += max(0, usage.prompt_tokens - before.prompt_tokens)
        counts.generated += max(0, usage.generated_tokens - before.generated_tokens)
