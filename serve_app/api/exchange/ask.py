"""A POST route that asks a model one question: body, endpoint, permit, entity, answer.

Like `generate`, but nothing streams. A question takes a request and its tokens, as input, from the
caller's budgets: tokenising is work too. It has no price. Knows no question.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.admission.metering import BYTES_PER_TOKEN
from serve_app.api.admission.permits import deadline_s
from serve_app.api.context import context_of
from serve_app.api.edge.body import read_body
from serve_app.api.edge.connection import reply, while_connected
from serve_app.api.exchange.dispatch import ANSWERED_BY, choose, first_answer
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import ServedEntity, Task
from serve_app.errors import ServeError
from serve_app.types import ModelInfo, Question, Usage
from serve_app.types.question import ReplyT

_JSON: Final = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry(Generic[ReplyT]):
    """A checked body: what to ask of which model, and how to tell the answer."""

    model: str  # name of the endpoint
    question: Question[ReplyT]  # without what only the server knows: its id and deadline
    answer: Callable[[ModelInfo, ReplyT], dict[str, Any]]  # the body of the answer
    estimate: Callable[[], int]  # tokens in the question, about; may read all of it
    tokens: Callable[[ReplyT], int]  # and as the answer tells


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Any entity will do: tokens have no task."""

    task: Task
    version: str | None = None
    user: None = None


class Asked(NamedTuple):
    """What one entity said."""

    entity: ServedEntity
    info: ModelInfo
    told: list[Any]  # in the order of the questions
    num_tokens: int  # that were made or read


@asynccontextmanager
async def asked_of(
    services: Services,
    scope: AsgiScope,
    model: str,
    questions: Sequence[Question[Any]],
    *,
    estimate: Callable[[], int],
    tokens: Callable[[list[Any]], int],
    version: str | None = None,
) -> AsyncIterator[Asked]:
    """The answers to all `questions`, one after the other, of one entity of the endpoint `model`.

    Over any transport. `estimate` is of the tokens in all questions and may read them; `tokens` are
    those that the answers tell of. They are drawn from the caller's budgets, and recorded once the
    block ends. Raises ServeError.
    """
    context = context_of(scope)
    limit = deadline_s(None, services.config.request_timeout_s)
    deadline = asyncio.get_running_loop().time() + limit
    endpoint = services.directory.find(model)
    context.endpoint = endpoint.name
    entities = choose(endpoint, _Wanted(endpoint.task, version), None, scope, context, services.backend)
    complete = [replace(question, id=context.id, timeout_s=limit) for question in questions]

    async def ask(entity: ServedEntity) -> tuple[ServedEntity, ModelInfo, list[Any]]:
        info = await services.backend.model(entity.app)
        return entity, info, [await services.backend.ask(entity.app, question) for question in complete]

    def tries(entity: ServedEntity) -> None:
        context.entity = entity.name

    def asked() -> Usage:
        return Usage(prompt_tokens=estimate())

    tries(entities[0])
    async with services.meter.admit(endpoint, asked, context) as metered:
        metered.has_price = False
        try:
            entity, info, told = await first_answer(
                services.backend, entities, ask, tries, deadline, services.config.restart_wait_s
            )
        except (ServeError, asyncio.CancelledError) as error:
            if isinstance(error, ServeError):
                context.status = context.render_error(error).status
            metered.give_up(error, asked)
            raise
        size = tokens(told)
        metered.usage = Usage(prompt_tokens=size)
        yield Asked(entity, info, told, size)


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
        return await self._services.aside(len(raw), self._parse, raw)

    async def _answer(self, inquiry: Inquiry[Any], scope: AsgiScope, send: Send) -> None:
        asked = asked_of(
            self._services,
            scope,
            inquiry.model,
            [inquiry.question],
            estimate=inquiry.estimate,
            tokens=lambda told: inquiry.tokens(told[0]),
        )
        async with asked as (entity, info, told, size):
            of = inquiry, info, told[0]
            body = await self._services.aside(size * BYTES_PER_TOKEN, _body, of)
            await reply(send, 200, {**_JSON, ANSWERED_BY: entity.name}, body)


def _body(of: tuple[Inquiry[Any], ModelInfo, Any]) -> bytes:
    inquiry, info, told = of
    return msgspec.json.encode(inquiry.answer(info, told))
