"""The calls from a gateway to the replicas of one model: made by Serve, answered through the channel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ray.exceptions import ActorDiedError, RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from serve_app.channel.frames import encoder, refusal_decoder
from serve_app.channel.inbox import BROKEN, KILLED, Inbox, ReplicaLost, ReplicaSilent
from serve_app.channel.link import SILENCE_S
from serve_app.channel.receiver import Receiver
from serve_app.deployments.adapter_affinity import toward
from serve_app.deployments.gateway.poison_requests import PoisonRequests
from serve_app.deployments.gateway.presence import is_sent, is_taken
from serve_app.errors import GenerationFailed, Overloaded, ServeError, Unavailable, from_info
from serve_app.types import GenerateRequest

logger = logging.getLogger(__name__)

LAST_DELTA_WAIT_S: Final = 5.0  # the call may return before the channel delivered all
LOOK_S: Final = 1.0  # between checks of calls that no replica has taken
FULL: Final = "the model's queue is full; try again"
LOST: Final = "the model's process ended; try again"
GONE: Final = "the model is restarting; try again"


class ReplicaLeaving(Unavailable):
    """The replica is stopping, and takes nothing new. Another replica may take the request."""


@dataclass(slots=True, eq=False)
class _Open:
    """A call that has not been closed."""

    inbox: Inbox
    sent_at: float | None = None  # a replica was chosen for it by then; the event loop's time

    def end(self) -> None:
        """End a call that no replica has taken or is going to take."""
        self.inbox.fail(Unavailable(GONE, retry_after_s=2.0))


class Calls:
    """The open calls to one model: requests and questions.

    When Serve has sent a call to a replica, the replica has to confirm it over the channel within
    `SILENCE_S`; otherwise the call ends. Afterwards the connection is watched (see `channel/receiver.py`).
    """

    def __init__(
        self,
        handle: DeploymentHandle,
        receiver: Receiver,
        poison_requests: PoisonRequests,
        on_silence: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_silence` is called when a replica did not confirm a call."""
        self.handle = handle
        self.receiver = receiver
        self.poison_requests = poison_requests
        self.watching: set[asyncio.Task[Any]] = set()  # each learns how one call ended
        self.open: dict[Any, _Open] = {}  # by Serve's response
        self._on_silence = on_silence
        self._timer: asyncio.TimerHandle | None = None
        self._look_at = 0.0

    @property
    def is_waited_for(self) -> bool:
        """Whether any open call has not been taken by a replica yet."""
        return not all(map(is_taken, self.open))

    def let_go(self) -> None:
        """End the calls that no replica has taken, because the model's replicas are gone."""
        for response, call in tuple(self.open.items()):
            if not is_taken(response):
                call.end()

    def add(self, response: Any, inbox: Inbox) -> None:
        """Add the call of Serve's `response`, which stays open until it is popped from `open`."""
        self.open[response] = _Open(inbox)
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._look_at = loop.time() + LOOK_S
        self._timer = loop.call_at(self._look_at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        was_held_up = now - self._look_at > LOOK_S  # confirmations may still wait to be read
        has_silence = False
        for response, call in tuple(self.open.items()):
            if call.inbox.is_answered or not is_sent(self.handle, response):
                call.sent_at = None
            elif call.sent_at is None or was_held_up:
                call.sent_at = now
            elif now - call.sent_at >= SILENCE_S:
                logger.warning("request %s: the replica did not take it", call.inbox.key)
                has_silence = True
                call.end()
        if has_silence:
            self._on_silence()
        if self.open:
            self._wait()

    async def answer(
        self, response: Any, key: str, on_death: Callable[[str], None] = lambda actor_id: None
    ) -> Any:
        """The reply to the call of Serve's `response`, which replicas know as `key`.

        If a replica dies during the call, `on_death` is called with its actor, possibly after this function
        has raised. Raises Overloaded and Unavailable. Cancelling the task withdraws the call.
        """
        inbox = self.receiver.open(key)
        self.add(response, inbox)
        asked = asyncio.ensure_future(self._reply(response, key, on_death))
        self.watching.add(asked)
        asked.add_done_callback(self.watching.discard)
        asked.add_done_callback(lambda _: inbox.close())
        try:
            await inbox.begun()  # until the answer closes the inbox
        except ReplicaSilent:
            raise  # the call stays open, so that it shows whether the process ended
        except BaseException:
            response.cancel()
            raise
        finally:
            inbox.close()
            self.open.pop(response, None)
        reply = asked.result()
        if isinstance(reply, ServeError):
            raise reply
        return reply

    async def _reply(self, response: Any, key: str, on_death: Callable[[str], None]) -> Any:
        """The reply in `response`, or the ServeError that describes its failure."""
        try:
            return await response
        except BackPressureError:
            return Overloaded(FULL, retry_after_s=1.0)
        except (RayError, RayServeException) as error:
            logger.warning("question %s: the call to the model failed: %s", key, type(error).__name__)
            if isinstance(error, ActorDiedError):
                on_death(error.actor_id or "")
            return Unavailable(LOST, retry_after_s=1.0)


class Call:
    """One call of a replica's `generate`, and the inbox of its deltas."""

    __slots__ = ("_calls", "_request", "_response", "_watching", "cause", "inbox")

    def __init__(
        self,
        calls: Calls,
        request: GenerateRequest,
        sent: GenerateRequest | None,
        on_leaving: Callable[[], None],
    ) -> None:
        """Sends `sent`, which is `request` or the rest of it. `on_leaving`: see `Receiver.open`.

        If `sent` is None, nothing is sent, and the call counts as refused.
        """
        self.cause: str | None = None  # why it lost the replica that had taken it; None: it did not
        self._calls = calls
        self._request = request
        if sent is None:
            self._response: Any = None
            self._watching: asyncio.Task[None] | None = None
            self.inbox: Inbox = calls.receiver.open(request.id, None, on_leaving)
            self.inbox.fail(Unavailable(GONE, retry_after_s=2.0))
            return
        ticket = encoder.encode(calls.receiver.ticket)
        self._response = toward(calls.handle, sent).generate.remote(encoder.encode(sent), ticket)
        record_id = None if sent.record is None else sent.record.id
        self.inbox = calls.receiver.open(sent.id, record_id, on_leaving)
        calls.add(self._response, self.inbox)
        self._watching = asyncio.ensure_future(self._watch())
        calls.watching.add(self._watching)
        self._watching.add_done_callback(calls.watching.discard)

    def close(self) -> None:
        """Take no more deltas, and cancel the call unless it has ended."""
        self.inbox.close()
        is_open = self._calls.open.pop(self._response, None) is not None
        if is_open and self._watching is not None and not (self.inbox.ended or self._watching.done()):
            self._response.cancel()

    def drop(self, error: ServeError) -> str | None:
        """Close after `error`. Returns why the call's replica was lost; None if no replica had taken it."""
        cause = error.cause if isinstance(error, (ReplicaLost, ReplicaSilent)) else self.cause
        if cause is None:
            self.close()
        else:
            self.lose()
        return cause

    def hand_over(self) -> None:
        """Close the call and make its replica forget the request, because another replica has it now."""
        self.inbox.abandon()
        self.close()

    def lose(self) -> None:
        """The replica is lost. Leave the call open, because its end will show whether the process ended."""
        self.inbox.close()
        self._calls.open.pop(self._response, None)

    async def _watch(self) -> None:
        """Learn how the call ended. If all went well, the channel has already reported the end."""
        inbox, id = self.inbox, self.inbox.key
        try:
            answer = await self._response
        except asyncio.CancelledError:
            inbox.fail(GenerationFailed("the request was cancelled"))
        except BackPressureError:
            inbox.fail(Overloaded(FULL, retry_after_s=1.0))
        except (RayError, RayServeException) as failure:
            logger.warning("request %s: the call to the model failed: %s", id, type(failure).__name__)
            if isinstance(failure, RayError):
                self.cause = BROKEN
            if isinstance(failure, ActorDiedError):
                self.cause = KILLED
                is_barren = not inbox.started
                self._calls.poison_requests.blame(self._request, failure.actor_id or "", is_barren=is_barren)
            gone = Unavailable(LOST, retry_after_s=1.0)
            inbox.fail(ReplicaLost(self.cause or BROKEN) if inbox.started else gone)
        except Exception:
            logger.exception("request %s: the call to the model failed", id)
            inbox.fail(GenerationFailed("generation failed; the request may be retried"))
        else:
            if answer is None:
                inbox.expect_end(LAST_DELTA_WAIT_S)
                return
            refused = refusal_decoder.decode(answer)
            error = from_info(refused.error)
            if isinstance(error, Unavailable) and inbox.started:
                self.cause = BROKEN  # the replica noticed the broken connection first
                error = ReplicaLost(BROKEN)
            elif refused.is_leaving:
                error = ReplicaLeaving(error.message, retry_after_s=error.retry_after_s)
            inbox.fail(error)
