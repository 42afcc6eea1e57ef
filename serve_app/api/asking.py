"""A POST route that asks a model one question: body, endpoint, permit, entity, answer.

Like `generate`, without tokens: nothing streams, and no budget is charged. Knows no question.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.admission import deadline_s
from serve_app.api.body import read_body
from serve_app.api.connection import reply, while_connected
from serve_app.api.context import context_of
from serve_app.api.dispatch import ANSWERED_BY, FAILS_OVER, choose, too_late
from serve_app.api.generate import OFF_LOOP_BYTES, Services
from serve_app.endpoints.endpoint import ServedEntity, Task
from serve_app.errors import Unavailable
from serve_app.types import ModelInfo, Question
from serve_app.types.question import ReplyT

logger = logging.getLogger(__name__)

_JSON: Final = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry(Generic[ReplyT]):
    """A checked body: what to ask of which model, and how to tell the answer."""

    model: str  # name of the endpoint
    question: Question[ReplyT]  # without what only the server knows: its id and deadline
    answer: Callable[[ModelInfo, ReplyT], dict[str, Any]]  # the body of the answer


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Any entity will do: tokens have no task."""

    task: Task
    version: None = None
    user: None = None


class QuestionRoute:
    """An ASGI app for one kind of question."""

    def __init__(self, parse: Callable[[bytes], Inquiry[Any]], services: Services) -> None:
        self._parse = parse
        self._services = services

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises ServeError before the answer, ClientGone at any time."""
        services = self._services
        services.admission.check()
        with services.bodies.lease() as lease:
            inquiry = await self._read(await read_body(scope, receive, lease.take))
            with services.admission.permits(1):
                await while_connected(receive, self._answer(inquiry, scope, send))

    async def _read(self, raw: bytes) -> Inquiry[Any]:
        if len(raw) < OFF_LOOP_BYTES:
            return self._parse(raw)
        async with self._services.parsing:
            return await asyncio.to_thread(self._parse, raw)

    async def _answer(self, inquiry: Inquiry[Any], scope: AsgiScope, send: Send) -> None:
        services, context = self._services, context_of(scope)
        limit = deadline_s(None, services.config.request_timeout_s)
        endpoint = services.directory.find(inquiry.model)
        context.endpoint = endpoint.name
        wanted = _Wanted(endpoint.task)
        entities = choose(endpoint, wanted, None, scope, context, services.backend)
        question = replace(inquiry.question, id=context.id, timeout_s=limit)
        try:
            async with asyncio.timeout(limit):
                entity, info, told = await self._ask(entities, question)
        except TimeoutError:
            raise too_late() from None
        context.entity = entity.name
        body = msgspec.json.encode(inquiry.answer(info, told))
        await reply(send, 200, {**_JSON, ANSWERED_BY: entity.name}, body)

    async def _ask(
        self, entities: tuple[ServedEntity, ...], question: Question[ReplyT]
    ) -> tuple[ServedEntity, ModelInfo, ReplyT]:
        """The first entity that answers. Raises the last one's ServeError."""
        backend = self._services.backend
        for left, entity in zip(range(len(entities) - 1, -1, -1), entities, strict=True):
            try:
                return entity, await backend.model(entity.app), await backend.ask(entity.app, question)
            except FAILS_OVER as error:
                if not left:
                    raise
                logger.warning("entity %s has no answer: %s", entity.name, type(error).__name__)
        raise Unavailable("no served entity can answer; try again", retry_after_s=2.0)
