"""What the HTTP layer needs of the rest of the server, as two protocols.

Knows neither Ray nor databases: `deployments` provides a `Backend`, `accounts`
provides an `Accounts`, and tests provide fakes of both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from serve_app.types import Caller, EngineStats, GenerateRequest, ModelInfo, TokenDelta


class Backend(Protocol):
    """The models behind a gateway."""

    def models(self) -> list[ModelInfo]:
        """The models that can answer now."""
        ...

    async def model(self, name: str) -> ModelInfo:
        """The model called `name`. Raises ModelNotFound, or Unavailable while it loads."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[list[TokenDelta]]:
        """The deltas of `request`, all that are ready at once in one list.

        Raises ServeError before or between lists. Closing the iterator, or cancelling
        the task that waits for it, aborts the request.
        """
        ...

    async def not_ready(self) -> list[str]:
        """Why the server cannot take all traffic; empty when it can."""
        ...

    def stats(self) -> dict[str, EngineStats]:
        """The latest snapshot of each model's engine, summed over its replicas."""
        ...


class Accounts(Protocol):
    """Who may call."""

    def authenticate(self, authorization: str | None, peer: str | None) -> Caller:
        """The caller of a request with this Authorization header from this address.

        `peer` is None when the address is not known. Raises Unauthenticated or
        PermissionDenied.
        """
        ...
