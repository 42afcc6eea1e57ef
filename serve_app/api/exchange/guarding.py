"""The guardrails of one request, through which its prompts and its answer pass.

All protocols and transports use it. Independent of particular rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from serve_app.api.context import RequestContext
from serve_app.api.exchange.dispatch import Attempt, too_late
from serve_app.api.exchange.judge import ModelJudge
from serve_app.api.guard.answers import GuardedStream, check_can_be_guarded
from serve_app.api.guard.guard import OUTPUT, Guard
from serve_app.api.guard.prompts import checked_inputs, checked_requests
from serve_app.api.protocol.dialect import Call
from serve_app.api.services import Services
from serve_app.errors import GuardrailTriggered
from serve_app.types import EmbedRequest, GenerateRequest


class Guarding:
    """One request of an endpoint with guardrails."""

    def __init__(self, guard: Guard, services: Services, context: RequestContext, deadline: float) -> None:
        """`deadline`: the request's deadline, in the event loop's time."""
        self._guard = guard
        self._services = services
        self._context = context
        self._deadline = deadline
        model = guard.model or services.config.guardrails_model
        self._judge = ModelJudge(services, context, model, deadline)

    async def prompts(self, call: Call, requests: list[GenerateRequest]) -> list[GenerateRequest]:
        """`requests` after the guardrails.

        Raises GuardrailTriggered or Unavailable; raises UnsupportedField for inputs that cannot be checked.
        """
        if self._guard.output is not None:
            check_can_be_guarded(call, requests)
        if self._guard.input is None:
            return requests
        try:
            return await checked_requests(requests, self._guard.input, self._judge)
        except GuardrailTriggered as error:
            self._count(error.side, error.check)
            raise

    async def inputs(self, request: EmbedRequest) -> EmbedRequest:
        """As `prompts`, for inputs that are to be embedded."""
        if self._guard.input is None:
            return request
        try:
            return await checked_inputs(request, self._guard.input, self._judge)
        except GuardrailTriggered as error:
            self._count(error.side, error.check)
            raise

    async def answer(self, call: Call, requests: Sequence[GenerateRequest], attempt: Attempt) -> Attempt:
        """`attempt` after the guardrails. Raises ServeError."""
        rules = self._guard.output
        if rules is None:
            return attempt

        def triggered(check: str) -> None:
            self._count(OUTPUT, check)

        stream = GuardedStream(attempt.stream, call, requests, rules, self._judge, triggered)
        try:
            async with asyncio.timeout_at(self._deadline):
                first = await stream.first(attempt.first)
        except TimeoutError:
            first = stream.cut()
            if not first:
                raise too_late() from None
        return replace(attempt, first=first, stream=stream)

    def _count(self, side: str, check: str) -> None:
        self._services.metrics.guardrail(self._context.endpoint, side, check)
