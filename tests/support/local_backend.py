"""A model of this process as the gateway's backend: the real engine, without Ray between.

Requests are bytes in between, as they are between processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from serve_app.channel.calls import decode_question, encode_question
from serve_app.channel.frames import encoder, request_decoder
from serve_app.endpoints.rules import app_name
from serve_app.errors import Unavailable
from serve_app.replica.served_model import ServedModel
from serve_app.types import EngineStats, GenerateRequest, ModelInfo, Question
from serve_app.types.question import ReplyT
from tests.support.streams import ServerStream


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

    def lacks(self, app: str) -> str | None:
        return None

    async def recovery(self, apps: Sequence[str], within_s: float) -> bool:
        return False

    def stats(self) -> dict[str, EngineStats]:
        return {app_name(self._server.info.name, self._server.info.version): self._server.stats()}

    def replicas(self) -> dict[str, dict[str, EngineStats]]:
        return {app: {"local": stats} for app, stats in self.stats().items()}

    def num_replicas(self, app: str) -> int:
        return int(self.is_ready(app))

    def migrations(self) -> dict[tuple[str, str], int]:
        return {}

    async def ask(self, app: str, question: Question[ReplyT]) -> ReplyT:
        return await self._server.ask(cast("Question[ReplyT]", decode_question(encode_question(question))))

    def generate(self, request: GenerateRequest) -> ServerStream:
        return ServerStream(self._server, request_decoder.decode(encoder.encode(request)))
