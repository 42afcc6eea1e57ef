"""The end of an engine whose device is broken. Knows outputs only."""

from __future__ import annotations

from serve_app.types import EngineOutput


class EngineDead(Exception):
    """The engine cannot run any more. `outputs` end every request that it had."""

    def __init__(self, message: str, outputs: list[EngineOutput]) -> None:
        super().__init__(message)
        self.outputs = outputs
