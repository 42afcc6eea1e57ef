"""What a model server sends, kept: the sink of tests and benchmarks that ask one in their own process."""

from __future__ import annotations

import asyncio

from serve_app.types import FinishReason, TokenDelta, ToolCallDelta


class Sink:
    """The deltas of one request, or of several that share it."""

    def __init__(self) -> None:
        self.steps: list[list[TokenDelta]] = []  # as they came
        self.began = asyncio.Event()

    def send(self, deltas: list[TokenDelta]) -> None:
        self.steps.append(deltas)
        self.began.set()

    @property
    def deltas(self) -> list[TokenDelta]:
        return [delta for step in self.steps for delta in step]

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas if delta.index == index)

    def ids(self, index: int = 0) -> list[int]:
        return [id for delta in self.deltas if delta.index == index for id in delta.token_ids]

    def finish(self, index: int = 0) -> FinishReason | None:
        return next(delta.finish for delta in reversed(self.deltas) if delta.index == index)

    @property
    def reasoning(self) -> str:
        return "".join(delta.reasoning for delta in self.deltas)

    @property
    def pieces(self) -> list[ToolCallDelta]:
        return [piece for delta in self.deltas for piece in delta.tool_calls]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """(name, arguments as text) of every call."""
        names = [piece.name for piece in self.pieces if piece.name is not None]
        texts = ["".join(p.arguments for p in self.pieces if p.index == i) for i in range(len(names))]
        return list(zip(names, texts, strict=True))
