"""The seam between a replica's event loop and its engine.

`adapters.loader.AdaptingLoop`, which steps the engine in a thread, fits it.
"""

from __future__ import annotations

from typing import Protocol

from serve_app.types import Adapter, EngineRequest, EngineStats


class EngineDriver(Protocol):
    """Steps an engine and reports the outputs of each step."""

    def start(self) -> None: ...

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ServeError (bad request, queue full) at once."""
        ...

    def abort(self, request_id: str) -> None: ...

    def finish(self, request_id: str, index: int, num_tokens: int) -> None: ...

    def load_adapter(self, key: str, adapter: Adapter) -> str:
        """Load an adapter; returns the name that requests added later may use. Blocks.

        The caller chooses `key`, and gives a key to one adapter at a time. Raises ServeError.
        """
        ...

    def drop_adapter(self, name: str) -> None:
        """Forget an adapter whose requests have all ended or been aborted. Never blocks."""
        ...

    def stats(self) -> EngineStats: ...

    def check_health(self, max_age_s: float) -> None: ...

    def stop(self, timeout_s: float) -> bool:
        """End the engine; returns whether it ended in time."""
        ...
