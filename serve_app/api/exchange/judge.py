"""The model that judges texts for a guardrail: any chat endpoint, with a grammar that allows only two words.

A text that cannot be judged does not pass: the caller gets Unavailable, and the client a 503. The model's
tokens count in the metrics of its endpoint, but are not charged. Independent of particular rules.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from contextlib import closing
from dataclasses import replace
from typing import Final

from serve_app.api.context import RequestContext
from serve_app.api.exchange.call_stream import CallStream
from serve_app.api.exchange.dispatch import Attempt, Candidates
from serve_app.api.guard.answers import PromptStream
from serve_app.api.services import Services
from serve_app.endpoints.catalogue import judging
from serve_app.endpoints.endpoint import Endpoint, ServedEntity
from serve_app.endpoints.split import candidates
from serve_app.errors import DeadlineExceeded, PromptTooLong, ServeError, Unavailable
from serve_app.guardrails.judging import Inquest
from serve_app.types import GenerateRequest, Grammar, GrammarKind, Prompt, SamplingParams

logger = logging.getLogger(__name__)

JUDGE_S: Final = 30.0  # for one verdict; a stream waits for it
RETRY_S: Final = 5.0
MAX_WORD_TOKENS: Final = 16  # of a verdict
SALT: Final = "guardrail"  # of the prefix cache: all requests share the instruction


class ModelJudge:
    """The judge of one request."""

    def __init__(
        self, services: Services, context: RequestContext, model: str | None, deadline: float
    ) -> None:
        """`model`: the endpoint's name. `deadline`: the request's deadline, in the event loop's time."""
        self._services = services
        self._context = context
        self._model = model or ""
        self._deadline = deadline

    async def __call__(self, inquest: Inquest, text: str) -> bool:
        """Whether `text` passes. Raises Unavailable, or DeadlineExceeded if the request's deadline passed."""
        try:
            return await self._passes(inquest, text)
        except ServeError as error:
            if isinstance(error, DeadlineExceeded) and asyncio.get_running_loop().time() >= self._deadline:
                raise
            logger.warning(
                "request %s: guardrail %s: %r cannot judge: %s",
                self._context.id,
                inquest.check,
                self._model,
                type(error).__name__,
            )
            raise Unavailable(
                f"the guardrail `{inquest.check}` cannot be checked at present, so nothing passes; try again",
                retry_after_s=RETRY_S,
            ) from error

    async def _passes(self, inquest: Inquest, text: str) -> bool:
        try:
            return await self._verdict(inquest, text) == inquest.passes
        except PromptTooLong:
            if len(text) < 2:
                raise
        middle = len(text) // 2
        return await self._passes(inquest, text[:middle]) and await self._passes(inquest, text[middle:])

    async def _verdict(self, inquest: Inquest, text: str) -> str:
        """One of the two words. Raises ServeError."""
        services, backend = self._services, self._services.backend
        try:
            endpoint = judging(self._model, services.directory.named(self._model))
        except ValueError as error:
            raise Unavailable(str(error)) from None
        deadline = min(self._deadline, asyncio.get_running_loop().time() + JUDGE_S)
        request = _request(f"{self._context.id}-{secrets.token_hex(4)}", inquest, text)

        async def ask(entity: ServedEntity) -> Attempt:
            info = await backend.model(entity.app)
            stream = CallStream(backend, [replace(request, model=entity.app)])
            return await Attempt.begin(entity, info, stream)

        attempt = await Candidates(
            entities=candidates(endpoint, secrets.token_hex(8), lambda each: backend.is_ready(each.app)),
            backend=backend,
            deadline=deadline,
            patience_s=services.config.restart_wait_s,
        ).first_answer(ask)
        word, deltas = "", attempt.first
        try:
            with closing(attempt.stream):
                async with asyncio.timeout_at(deadline):
                    while deltas:
                        word += "".join(delta.text for _, delta in deltas)
                        deltas = await attempt.stream.get()
        except TimeoutError:
            raise DeadlineExceeded("the verdict did not come in time") from None
        finally:
            self._count(endpoint, attempt.entity, attempt.stream)
        if word not in inquest.words:
            raise Unavailable("the model gave no verdict")
        return word

    def _count(self, endpoint: Endpoint, entity: ServedEntity, stream: PromptStream) -> None:
        self._services.metrics.tokens(endpoint.name, entity.name, stream.usage)


def _request(id: str, inquest: Inquest, text: str) -> GenerateRequest:
    return GenerateRequest(
        id=id,
        model="",  # of the entity
        prompt=Prompt(messages=inquest.messages(text)),
        sampling=SamplingParams(temperature=0.0, max_tokens=MAX_WORD_TOKENS),
        grammar=Grammar(kind=GrammarKind.CHOICE, text=json.dumps(inquest.words)),
        reasoning=False,
        stream=False,
        timeout_s=JUDGE_S,
        salt=SALT,
    )
