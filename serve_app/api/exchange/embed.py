"""A POST route that embeds: body, endpoint, permit, budget, entity, vectors, answer.

It is the same for every dialect, and like `generate`, except that one call replaces the stream of deltas.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import prod

from starlette.types import Receive, Scope, Send

from serve_app.api.admission.estimates import tokens_in
from serve_app.api.edge.connection import Writer
from serve_app.api.exchange.ask import first_reply
from serve_app.api.exchange.dispatch import ANSWERED_BY, candidates_of
from serve_app.api.exchange.frame import Exchange
from serve_app.api.exchange.generate import answer_headers
from serve_app.api.exchange.guarding import Guarding
from serve_app.api.exchange.shadow import copy_embedding
from serve_app.api.protocol.dialect import Parser
from serve_app.api.protocol.embed_call import PIECE_NUMBERS, EmbedCall
from serve_app.api.services import Services
from serve_app.endpoints.endpoint import ServedEntity
from serve_app.errors import GenerationFailed, InvalidField
from serve_app.limits import MAX_EMBEDDED_NUMBERS
from serve_app.types import Embeddings, EmbedRequest, ModelInfo, Usage


class EmbedRoute:
    """An ASGI app for one dialect. The body names the endpoint."""

    def __init__(self, dialect: Parser[EmbedCall], services: Services) -> None:
        self._dialect = dialect
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ServeError only before the answer's first byte, but ClientGone at any time."""
        await EmbedExchange(self._dialect, self._services, scope, receive, send).run()


class EmbedExchange(Exchange[EmbedCall]):
    """One request that embeds, and its answer."""

    async def _answer(self, call: EmbedCall, entity: str | None) -> None:
        services, context = self._services, self._context
        endpoint = services.endpoints(self._scope).find(call.model)
        candidates = candidates_of(endpoint, call, entity, self._scope, services)
        request = replace(call.request, id=context.id, timeout_s=candidates.limit_s)
        guard = services.guards.of(endpoint)
        guarding = None if guard is None else Guarding(guard, services, context, candidates.deadline)

        async def ask(chosen: ServedEntity) -> tuple[ServedEntity, ModelInfo, Embeddings]:
            nonlocal request, guarding
            if guarding is not None:
                request = await guarding.inputs(request)
                guarding = None
            return await self._ask(request, chosen)

        replied = first_reply(
            services, self._scope, endpoint, candidates, ask, lambda: _reserved(request), has_price=True
        )
        async with replied as ((chosen, info, embeddings), metered):
            metered.usage = Usage(prompt_tokens=embeddings.prompt_tokens)
            copy_embedding(services, context, endpoint, request, chosen, metered.record)
            services.metrics.tokens(context.endpoint, context.entity, metered.usage)
            await self._write(call, chosen, info, embeddings)

    async def _ask(
        self, request: EmbedRequest, entity: ServedEntity
    ) -> tuple[ServedEntity, ModelInfo, Embeddings]:
        backend = self._services.backend
        info = await backend.model(entity.app)
        _check_size(request, info)
        return entity, info, _checked(await backend.ask(entity.app, request), request)

    async def _write(
        self, call: EmbedCall, entity: ServedEntity, info: ModelInfo, embeddings: Embeddings
    ) -> None:
        headers = answer_headers(call.ignored, "application/json")
        headers[ANSWERED_BY] = entity.name
        self._context.status = 200
        pieces = call.render(self._context.id, replace(info, name=entity.name), embeddings)
        async with Writer(self._send) as writer:
            if prod(embeddings.vectors.shape) <= PIECE_NUMBERS:
                body = b"".join(pieces)
                await writer.start(200, {**headers, "content-length": str(len(body))})
                await writer.body(body)
                return
            await writer.start(200, headers)
            for piece in pieces:
                await writer.body(piece, more=True)
                await asyncio.sleep(0)  # other tasks run between the pieces of a long answer
            await writer.body(b"")


def _reserved(request: EmbedRequest) -> Usage:
    """About how many tokens the inputs have. Reads all inputs."""
    before = tokens_in(request.instruction or "")
    return Usage(
        prompt_tokens=sum(
            before + tokens_in(each) if isinstance(each, str) else len(each) for each in request.inputs
        )
    )


def _check_size(request: EmbedRequest, info: ModelInfo) -> None:
    if info.dimensions is None:
        raise InvalidField("model", "it generates text and does not embed")
    most = MAX_EMBEDDED_NUMBERS // min(request.dimensions or info.dimensions, info.dimensions)
    if len(request.inputs) > most:
        raise InvalidField("input", f"must hold at most {most} texts, as the model's vectors are that large")


def _checked(embeddings: Embeddings, request: EmbedRequest) -> Embeddings:
    """`embeddings`, if there is one vector per input. Raises GenerationFailed otherwise."""
    vectors = embeddings.vectors
    if len(vectors.shape) != 2 or vectors.shape[0] != len(request.inputs):
        raise GenerationFailed("the answer is incomplete; the request may be retried")
    return embeddings
