"""Where a replica's engine steps: the seam between its event loop and the engine.

`EngineLoop` (a thread) and `EngineProcess` (a child process) both fit it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from serve_app.types import Adapter, EngineOutput, EngineRequest, EngineStats

OnOutputs = Callable[[list[EngineOutput]], None]


class Steps(Protocol):
    """Something that steps an engine and reports each step's outputs."""

    def start(self) -> None: ...

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises ServeError (bad request, queue full) at once."""
        ...

    def abort(self, request_id: str) -> None: ...

    def finish(self, request_id: str, index: int, num_tokens: int) -> None: ...

    def load_adapter(self, key: str, adapter: Adapter) -> str:
        """Hold an adapter; returns the name that requests added later may use. Blocks.

        `key` is the caller's, of one adapter at a time. Raises ServeError.
        """
        ...

    def drop_adapter(self, name: str) -> None:
        """Forget one whose requests have all ended or been aborted. Never waits."""
        ...

    def stats(self) -> EngineStats: ...

    def check_health(self, max_age_s: float) -> None: ...

    def stop(self, timeout_s: float) -> bool:
        """End it; returns whether it ended in time."""
        ...
