"""The way from a gateway to the replicas of one model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
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
from serve_app.types import FinishReason, GenerateRequest, Question, TokenDelta
from serve_app.types.question import ReplyT

logger = logging.getLogger(__name__)

ATTEMPTS: Final = 3  # a request moves to another replica at most twice
LAST_DELTA_WAIT_S: Final = 5.0  # the call may return before the channel delivered all
LOST: Final = "the model's process ended; try again"
GONE: Final = "the model is restarting; try again"


class Route:
    """Sends requests to one model, and moves them while nothing was delivered.

    `is_there` tells whether it has anybody to move to.
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
        self._calls: set[asyncio.Task[None]] = set()
        self._open: dict[Any, Callable[[], None]] = {}  # Serve's response -> how to end its request

    @property
    def is_waited_for(self) -> bool:
        """Whether a request is open that no replica has taken yet."""
        return not all(map(is_taken, self._open))

    def let_go(self) -> None:
        """The model's replicas are gone: end the requests that none of them had taken."""
        for response, end in tuple(self._open.items()):
            if not is_taken(response):
                end()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        """The deltas of `request`, all that arrived at once in one list, as they arrive.

        Raises ServeError. Fails over only before the first delta. Closing the iterator
        aborts the request.
        """
        self._quarantine.check(request)
        for attempt in range(ATTEMPTS):
            # A fresh key: a replica that was given up may still send under the old one.
            key = request.id if attempt == 0 else f"{request.id}~{attempt}"
            inbox = self._receiver.open(key, None if request.record is None else request.record.id)
            try:
                async with aclosing(self._attempt(replace(request, id=key), inbox)) as steps:
                    async for deltas in steps:
                        yield deltas if attempt == 0 else [replace(d, request_id=request.id) for d in deltas]
                self._quarantine.clear(request)
                return
            except Unavailable:
                self._quarantine.check(request)
                if inbox.started or attempt == ATTEMPTS - 1 or not self._is_there():
                    raise
                logger.warning(
                    "request %s: attempt %d failed before its first token", request.id, attempt + 1
                )

    async def ask(self, question: Question[ReplyT]) -> ReplyT:
        """The answer to `question`, moved to another replica when its own dies. Raises ServeError.

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

    async def _attempt(
        self, request: GenerateRequest, inbox: Inbox
    ) -> AsyncGenerator[list[TokenDelta], None]:
        ticket = encoder.encode(self._receiver.ticket)
        response = toward(self._handle, request).generate.remote(encoder.encode(request), ticket)
        call = asyncio.ensure_future(self._watch(request, response, inbox))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        open_choices = set(range(request.n))
        self._open[response] = partial(inbox.fail, Unavailable(GONE, retry_after_s=2.0))
        try:
            while deltas := await inbox.get():
                open_choices -= {d.index for d in deltas if d.finish and d.finish is not FinishReason.ERROR}
                yield deltas
            open_choices.clear()
        finally:
            del self._open[response]
            inbox.close()
            if open_choices and not call.done():
                response.cancel()

    async def _watch(self, request: GenerateRequest, response: Any, inbox: Inbox) -> None:
        """Learn how the call ended; the channel has told already if all went well."""
        try:
            answer = await response
        except asyncio.CancelledError:
            inbox.fail(GenerationFailed("the request was cancelled"))
        except BackPressureError:
            inbox.fail(Overloaded("the model's queue is full; try again", retry_after_s=1.0))
        except (RayError, RayServeException) as error:
            logger.warning("request %s: the call to the model failed: %s", request.id, type(error).__name__)
            if isinstance(error, ActorDiedError):
                self._quarantine.blame(request, error.actor_id or "")
            inbox.fail(GenerationFailed(BROKEN) if inbox.started else Unavailable(LOST, retry_after_s=1.0))
        except Exception:
            logger.exception("request %s: the call to the model failed", request.id)
            inbox.fail(GenerationFailed("generation failed; the request may be retried"))
        else:
            if answer is None:
                late = GenerationFailed(BROKEN)
                asyncio.get_running_loop().call_later(LAST_DELTA_WAIT_S, inbox.fail, late)
            else:
                inbox.fail(from_info(refusal_decoder.decode(answer).error))
