"""Routes a gateway's requests and questions to the replicas of one model."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ray.serve.handle import DeploymentHandle

from serve_app.channel.calls import decode_reply, encode_question
from serve_app.channel.frames import encoder
from serve_app.channel.receiver import Receiver
from serve_app.deployments.gateway.calls import LOST, Calls
from serve_app.deployments.gateway.migrations import Migrations
from serve_app.deployments.gateway.next_step import ATTEMPTS
from serve_app.deployments.gateway.poison_requests import UNLUCKY_DEATHS, PoisonRequests
from serve_app.deployments.gateway.presence import choices
from serve_app.deployments.gateway.routed_stream import PATIENCE_S, Replicas, RoutedStream
from serve_app.errors import Unavailable
from serve_app.types import GenerateRequest, Question
from serve_app.types.question import ReplyT

logger = logging.getLogger(__name__)


class Route:
    """Sends requests and questions to the replicas of one model; if a replica is lost, to another one."""

    def __init__(
        self,
        handle: DeploymentHandle,
        receiver: Receiver,
        poison_requests: PoisonRequests,
        is_there: Callable[[], bool] = lambda: True,
        *,
        may_return: Callable[[], bool] = lambda: False,
        patience_s: float = PATIENCE_S,
        migrations: Migrations | None = None,
        on_silence: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_there`: whether the model has a replica to call; `may_return`: whether it may soon have one.

        `patience_s`: how long an answer whose replica was lost waits for another replica.
        `on_silence`: see `Calls`.
        """
        self._calls = Calls(handle, receiver, poison_requests, on_silence)
        self._replicas = Replicas(
            self._calls,
            is_there,
            may_return,
            has_another=lambda: is_there() and choices(handle) != 0,
            patience_s=patience_s,
            migrations=migrations or Migrations(),
        )

    @property
    def is_waited_for(self) -> bool:
        """Whether any open request has not been taken by a replica yet, or has lost its replica."""
        return self._calls.is_waited_for or bool(self._replicas.waiting)

    def let_go(self) -> None:
        """End the requests that no replica has taken, because the model's replicas are gone."""
        self._calls.let_go()

    def generate(self, request: GenerateRequest) -> RoutedStream:
        """Send `request`. Raises EngineRefused for a request that has killed replicas."""
        return RoutedStream(self._replicas, request)

    async def ask(self, question: Question[ReplyT]) -> ReplyT:
        """The answer to `question`; if the first replica dies, from another one. Raises ServeError.

        Cancelling the task withdraws the question.
        """
        replicas, poison_requests = self._replicas, self._calls.poison_requests
        poison_requests.check(question)
        deaths = poison_requests.barren_deaths(question)
        for tries in range(ATTEMPTS):
            try:
                # A fresh id: an abandoned replica may still answer under the old one.
                reply = await self._ask(replace(question, id=f"{question.id}~{tries}") if tries else question)
            except Unavailable:
                poison_requests.check(question)
                is_unlucky = poison_requests.barren_deaths(question) - deaths >= UNLUCKY_DEATHS
                if tries == ATTEMPTS - 1 or is_unlucky or not replicas.is_there():
                    raise
                logger.warning("question %s: an attempt failed", question.id)
            else:
                poison_requests.clear(question)
                return reply
        raise Unavailable(LOST, retry_after_s=1.0)

    async def _ask(self, question: Question[ReplyT]) -> ReplyT:
        calls = self._calls
        response = calls.handle.ask.remote(encode_question(question), encoder.encode(calls.receiver.ticket))
        blame = partial(calls.poison_requests.blame, question)
        return decode_reply(question, await calls.answer(response, question.id, on_death=blame))

    async def info(self) -> bytes:
        """The result of `info` of a replica. Raises Unavailable and Overloaded."""
        response: bytes = await self._calls.answer(self._calls.handle.info.remote(), secrets.token_hex(8))
        return response
