"""The way from a gateway to the replicas of one model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ray.exceptions import ActorDiedError, RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from serve_app.channel.frames import encoder, refusal_decoder
from serve_app.channel.questions import decode_reply, encode_question
from serve_app.channel.receiver import BROKEN, Inbox, Receiver
from serve_app.deployments.gateway.affinity import toward
from serve_app.deployments.gateway.presence import is_taken
from serve_app.deployments.gateway.quarantine import Quarantine
from serve_app.errors import GenerationFailed, Overloaded, Unavailable, from_info
from serve_app.types import GenerateRequest, Question, TokenDelta
from serve_app.types.question import ReplyT

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 3  # a request moves to another replica at most twice
LAST_DELTA_WAIT_S: Final = 5.0  # the call may return before the channel delivered all
LOST: Final = "the model's process ended; try again"
GONE: Final = "the model is restarting; try again"


class Route:
    """Sends requests to one model, and moves them to another replica while nothing was delivered.

    `is_there` tells whether the model has a replica to move to.
    """

    def __init__(
        self,
        handle: DeploymentHandle,
        receiver: Receiver,
        quarantine: Quarantine,
        is_there: Callable[[], bool] = lambda: True,
    ) -> None:
        self._handle = handle
        self._receiver = receiver
        self._quarantine = quarantine
        self._is_there = is_there
        self._watching: set[asyncio.Task[None]] = set()
        self._open: dict[Any, Callable[[], None]] = {}  # Serve's response -> how to end its request

    @property
    def is_waited_for(self) -> bool:
        """Whether a request is open that no replica has taken yet."""
        return not all(map(is_taken, self._open))

    def let_go(self) -> None:
        """The model's replicas are gone: end the requests that no replica had taken."""
        for response, end in tuple(self._open.items()):
            if not is_taken(response):
                end()

    def generate(self, request: GenerateRequest) -> RoutedStream:
        """Send `request`. Raises EngineRefused for one that ended replicas."""
        return RoutedStream(self, request)

    async def ask(self, question: Question[ReplyT]) -> ReplyT:
        """The answer to `question`, from another replica when the first one dies. Raises ServeError.

        Cancelling the task takes the question back.
        """
        self._quarantine.check(question)
        for left in range(ATTEMPTS - 1, -1, -1):
            try:
                reply = await self._ask(question)
            except Unavailable:
                self._quarantine.check(question)
                if not left or not self._is_there():
                    raise
                logger.warning("question %s: an attempt failed", question.id)
            else:
                self._quarantine.clear(question)
                return reply
        raise Unavailable(LOST, retry_after_s=1.0)

    async def _ask(self, question: Question[ReplyT]) -> ReplyT:
        ticket = encoder.encode(self._receiver.ticket)
        response = self._handle.ask.remote(encode_question(question), ticket)
        self._open[response] = response.cancel
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
                self._quarantine.blame(question, error.actor_id or "")
            raise Unavailable(LOST, retry_after_s=1.0) from error
        finally:
            del self._open[response]


class RoutedStream:
    """A `DeltaStream` of one request, which moves to another replica while nothing was delivered."""

    def __init__(self, route: Route, request: GenerateRequest) -> None:
        """Sends `request`. Raises EngineRefused."""
        self._route = route
        self._request = request
        self._attempt = 0
        route._quarantine.check(request)
        self._call = self._send()

    async def get(self) -> list[TokenDelta]:
        request, quarantine = self._request, self._route._quarantine
        while True:
            inbox = self._call.inbox
            try:
                deltas = await inbox.get()
                break
            except Unavailable:
                self.close()
                quarantine.check(request)
                if inbox.started or self._attempt == ATTEMPTS - 1 or not self._route._is_there():
                    raise
                self._attempt += 1
                logger.warning("request %s: moved after failure %d", request.id, self._attempt)
                self._call = self._send()
        if not deltas and inbox.ended:
            quarantine.clear(request)
        return [replace(delta, request_id=request.id) for delta in deltas] if self._attempt else deltas

    def close(self) -> None:
        self._call.close()

    def _send(self) -> _Call:
        # A fresh id: a replica that was given up may still send under the old one.
        id = f"{self._request.id}~{self._attempt}" if self._attempt else self._request.id
        return _Call(self._route, replace(self._request, id=id))


class _Call:
    """One call of a replica's `generate`, and the inbox of its deltas."""

    def __init__(self, route: Route, request: GenerateRequest) -> None:
        ticket = encoder.encode(route._receiver.ticket)
        handle = toward(route._handle, request)
        self._open = route._open
        self._response = handle.generate.remote(encoder.encode(request), ticket)
        self.inbox = route._receiver.open(request.id, None if request.record is None else request.record.id)
        self._open[self._response] = partial(self.inbox.fail, Unavailable(GONE, retry_after_s=2.0))
        self._watching = asyncio.ensure_future(_watch(request, self._response, self.inbox, route._quarantine))
        route._watching.add(self._watching)
        self._watching.add_done_callback(route._watching.discard)

    def close(self) -> None:
        """Take no more deltas, and cancel the call unless it ended."""
        self.inbox.close()
        if self._open.pop(self._response, None) and not self.inbox.ended and not self._watching.done():
            self._response.cancel()


async def _watch(request: GenerateRequest, response: Any, inbox: Inbox, quarantine: Quarantine) -> None:
    """Learn how a call ended. The channel has told already if all went well."""
    try:
        answer = await response
    except asyncio.CancelledError:
        inbox.fail(GenerationFailed("the request was cancelled"))
    except BackPressureError:
        inbox.fail(Overloaded("the model's queue is full; try again", retry_after_s=1.0))
    except (RayError, RayServeException) as error:
        logger.warning("request %s: the call to the model failed: %s", request.id, type(error).__name__)
        if isinstance(error, ActorDiedError):
            quarantine.blame(request, error.actor_id or "")
        inbox.fail(GenerationFailed(BROKEN) if inbox.started else Unavailable(LOST, retry_after_s=1.0))
    except Exception:
        logger.exception("request %s: the call to the model failed", request.id)
        inbox.fail(GenerationFailed("generation failed; the request may be retried"))
    else:
        if answer is None:
            inbox.expect_end(LAST_DELTA_WAIT_S)
        else:
            inbox.fail(from_info(refusal_decoder.decode(answer).error))
