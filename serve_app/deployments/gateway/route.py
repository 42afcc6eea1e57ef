"""The way from a gateway to the replicas of one model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ray.exceptions import ActorDiedError, RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from serve_app.channel.frames import encoder
from serve_app.channel.questions import decode_reply, encode_question
from serve_app.channel.receiver import Receiver
from serve_app.deployments.gateway.calls import LOST, Calls
from serve_app.deployments.gateway.migrations import Migrations
from serve_app.deployments.gateway.presence import choices
from serve_app.deployments.gateway.quarantine import Quarantine
from serve_app.deployments.gateway.routed_stream import ATTEMPTS, PATIENCE_S, Replicas, RoutedStream
from serve_app.errors import Overloaded, Unavailable
from serve_app.types import GenerateRequest, Question
from serve_app.types.question import ReplyT

logger = logging.getLogger(__name__)


class Route:
    """Sends requests and questions to one model; both go on in another replica where one is lost."""

    def __init__(
        self,
        handle: DeploymentHandle,
        receiver: Receiver,
        quarantine: Quarantine,
        is_there: Callable[[], bool] = lambda: True,
        *,
        may_return: Callable[[], bool] = lambda: False,
        patience_s: float = PATIENCE_S,
        migrations: Migrations | None = None,
    ) -> None:
        """`is_there`: whether the model has a replica to call; `may_return`: whether it may soon have one.

        `patience_s`: how long an answer that lost its replica waits for another one.
        """
        self._calls = Calls(handle, receiver, quarantine)
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
        """Whether a request is open that no replica has taken yet, or that has lost its replica."""
        return self._calls.is_waited_for or bool(self._replicas.waiting)

    def let_go(self) -> None:
        """The model's replicas are gone: end the requests that no replica had taken."""
        self._calls.let_go()

    def generate(self, request: GenerateRequest) -> RoutedStream:
        """Send `request`. Raises EngineRefused for one that ended replicas."""
        return RoutedStream(self._replicas, request)

    async def ask(self, question: Question[ReplyT]) -> ReplyT:
        """The answer to `question`, from another replica when the first one dies. Raises ServeError.

        Cancelling the task takes the question back.
        """
        replicas, quarantine = self._replicas, self._calls.quarantine
        quarantine.check(question)
        for left in range(ATTEMPTS - 1, -1, -1):
            try:
                reply = await self._ask(question)
            except Unavailable:
                quarantine.check(question)
                if not left or not replicas.is_there():
                    raise
                logger.warning("question %s: an attempt failed", question.id)
            else:
                quarantine.clear(question)
                return reply
        raise Unavailable(LOST, retry_after_s=1.0)

    async def _ask(self, question: Question[ReplyT]) -> ReplyT:
        calls = self._calls
        ticket = encoder.encode(calls.receiver.ticket)
        response = calls.handle.ask.remote(encode_question(question), ticket)
        calls.open[response] = response.cancel
        try:
            return decode_reply(question, await response)
        except asyncio.CancelledError:
            response.cancel()
            raise
        except BackPressureError as error:
            raise Overloaded("the model's queue is full; try again", retry_after_s=1.0) from error
        except (RayError, RayServeException) as error:
            logger.warning("question %s: the call to the model failed: %s", question.id, type(error).__name__)
            if isinstance(error, ActorDiedError):
                calls.quarantine.blame(question, error.actor_id or "")
            raise Unavailable(LOST, retry_after_s=1.0) from error
        finally:
            del calls.open[response]
