"""A model of this process as the gateway's backend: the real engine, without Ray between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from serve_app.endpoints.names import app_name
from serve_app.errors import Unavailable
from serve_app.replica.served_model import ServedModel
from serve_app.types import EngineStats, GenerateRequest, ModelInfo, Question, TokenDelta
from serve_app.types.question import ReplyT


class QueueSink:
    """Keeps deltas until they are asked for."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[list[TokenDelta] | None] = asyncio.Queue()

    def send(self, deltas: list[TokenDelta]) -> None:
        self.queue.put_nowait(deltas)


class LocalBackend:
    """One server."""

    def __init__(self, server: ServedModel) -> None:
        self._server = server
        self.infos = [server.info]

    def is_ready(self, app: str) -> bool:
        return self.info(app) is not None

    def info(self, app: str) -> ModelInfo | None:
        own = self._server.info
        return own if app == app_name(own.name, own.version) else None

    async def model(self, app: str) -> ModelInfo:
        info = self.info(app)
        if info is None:
            raise Unavailable("there is no such model")
        return info

    def missing(self, app: str) -> str | None:
        return None if self.is_ready(app) else "there is one model only"

    async def recovery(self, apps: Sequence[str], within_s: float) -> bool:
        return False

    def stats(self) -> dict[str, EngineStats]:
        return {app_name(self._server.info.name, self._server.info.version): self._server.stats()}

    async def ask(self, app: str, question: Question[ReplyT]) -> ReplyT:
        return await self._server.ask(question)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        sink = QueueSink()
        task = asyncio.ensure_future(self._server.generate(request, sink))
        task.add_done_callback(lambda _: sink.queue.put_nowait(None))
        try:
            while (deltas := await sink.queue.get()) is not None:
                yield deltas
            await task  # raises what it refused
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
