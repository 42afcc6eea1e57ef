"""A POST route that asks a model one or more questions: body, endpoint, permit, entity, answer.

Like `generate`, but nothing is streamed. Tokenising is work too, so the caller's budgets count a question as
a request, and its tokens as input. A question has no price. Independent of particular questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from serve_app.api.admission.estimates import BYTES_PER_TOKEN, prompt_tokens
from serve_app.api.admission.metering import Metered
from serve_app.api.context import RenderError, context_of
from serve_app.api.edge.connection import reply
from serve_app.api.exchange.dispatch import ANSWERED_BY, Candidates, candidates_of
from serve_app.api.exchange.frame import exchange
from serve_app.api.protocol.dialect import Referring, Target
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import Endpoint, ServedEntity
from serve_app.errors import ServeError
from serve_app.types import ModelInfo, Prompt, Question, TokenizeRequest, Tokens, Usage
from serve_app.types.question import ReplyT

_JSON: Final = {"content-type": "application/json"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry(Generic[ReplyT]):
    """A checked body: the questions, their model, and the renderer of the answer."""

    model: str  # name of the endpoint
    questions: tuple[Question[ReplyT], ...]  # without ids and deadlines, which the server adds
    answer: Callable[[ModelInfo, list[ReplyT]], Mapping[str, object]]  # the body of the answer
    estimate: Callable[[], int]  # the questions' tokens, estimated; may read all of them
    tokens: Callable[[list[ReplyT]], int]  # the questions' tokens, from the replies
    names: Mapping[str, str] = field(default_factory=dict)  # a replica's name of a field -> the client's

    @property
    def num_prompts(self) -> int:
        return len(self.questions)


def count_tokens(replies: Iterable[Tokens]) -> int:
    """The number of tokens in the replies."""
    return sum(len(reply.token_ids) for reply in replies)


def length_of(
    prompt: Prompt, *, model: str, names: Mapping[str, str], answer: Callable[[int], Mapping[str, object]]
) -> Inquiry[Tokens]:
    """The number of tokens that the model would read; `answer` renders it."""
    return Inquiry(
        model=model,
        questions=(TokenizeRequest(id="", prompt=prompt),),
        answer=lambda _, replies: answer(count_tokens(replies)),
        estimate=lambda: prompt_tokens(prompt),
        tokens=count_tokens,
        names=names,
    )


class EntityReply(NamedTuple):
    """The replies of one entity."""

    entity: ServedEntity
    info: ModelInfo
    told: list[Any]  # in the order of the questions
    num_tokens: int  # that were made or read


@asynccontextmanager
async def first_reply(
    services: Services,
    scope: AsgiScope,
    endpoint: Endpoint,
    candidates: Candidates,
    ask: Callable[[ServedEntity], Awaitable[T]],
    estimate: Callable[[], Usage],
    *,
    has_price: bool,
) -> AsyncIterator[tuple[T, Metered]]:
    """The replies of the first entity of `candidates` that can answer, and the meter of the request.

    `estimate` returns the estimated tokens, and may read all questions. The block sets the usage of the
    meter, which is recorded once the block ends. Raises ServeError.
    """
    context = context_of(scope)
    async with services.meter.admit(endpoint, estimate, context) as metered:
        metered.has_price = has_price
        try:
            found = await candidates.first_answer(ask)
        except (ServeError, asyncio.CancelledError) as error:
            if isinstance(error, ServeError):
                context.status = context.render_error(error).status
            metered.give_up(error, estimate)
            raise
        yield found, metered


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
) -> AsyncIterator[EntityReply]:
    """The replies to all `questions`, asked one after the other, from one entity of the endpoint `model`.

    For any transport. `estimate` estimates the number of tokens in all questions, and may read the questions;
    `tokens` counts the tokens in the replies. The tokens are drawn from the caller's budgets, and recorded
    once the block ends. Raises ServeError.
    """
    backend = services.backend
    endpoint = services.endpoints(scope).find(model)
    target = Target(task=endpoint.task, version=version)  # any entity will do: tokens have no task
    candidates = candidates_of(endpoint, target, None, scope, services)
    complete = [replace(each, id=context_of(scope).id, timeout_s=candidates.limit_s) for each in questions]

    async def ask(entity: ServedEntity) -> tuple[ServedEntity, ModelInfo, list[Any]]:
        info = await backend.model(entity.app)
        return entity, info, [await backend.ask(entity.app, question) for question in complete]

    def asked() -> Usage:
        return Usage(prompt_tokens=estimate())

    async with first_reply(services, scope, endpoint, candidates, ask, asked, has_price=False) as (
        found,
        metered,
    ):
        entity, info, told = found
        size = tokens(told)
        metered.usage = Usage(prompt_tokens=size)
        yield EntityReply(entity, info, told, size)


class QuestionRoute:
    """An ASGI app for one kind of question."""

    def __init__(
        self,
        parse: Callable[[bytes], Inquiry[Any] | Referring[Inquiry[Any]]],
        services: Services,
        render_error: RenderError | None = None,
    ) -> None:
        """`render_error`: given if a setting decides the form of errors; None: the protocol decides."""
        self._parse = parse
        self._services = services
        self._render_error = render_error

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Raises ServeError only before the answer, but ClientGone at any time."""
        if self._render_error is not None:
            context_of(scope).render_error = self._render_error

        async def answer(inquiry: Inquiry[Any]) -> None:
            await self._answer(inquiry, scope, send)

        await exchange(self._services, scope, receive, self._parse, answer)

    async def _answer(self, inquiry: Inquiry[Any], scope: AsgiScope, send: Send) -> None:
        asked = asked_of(
            self._services,
            scope,
            inquiry.model,
            inquiry.questions,
            estimate=inquiry.estimate,
            tokens=inquiry.tokens,
        )
        async with asked as (entity, info, told, size):
            of = inquiry, info, told
            body = await self._services.aside(size * BYTES_PER_TOKEN, _body, of)
            await reply(send, 200, {**_JSON, ANSWERED_BY: entity.name}, body)


def _body(of: tuple[Inquiry[Any], ModelInfo, list[Any]]) -> bytes:
    inquiry, info, told = of
    return msgspec.json.encode(inquiry.answer(info, told))
