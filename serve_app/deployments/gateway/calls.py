"""The calls from a gateway to the replicas of one model: made by Serve, answered through the channel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from ray.exceptions import ActorDiedError, RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from serve_app.channel.frames import encoder, refusal_decoder
from serve_app.channel.inbox import BROKEN, KILLED, Inbox, ReplicaLost
from serve_app.channel.receiver import Receiver
from serve_app.deployments.gateway.affinity import toward
from serve_app.deployments.gateway.presence import is_taken
from serve_app.deployments.gateway.quarantine import Quarantine
from serve_app.errors import GenerationFailed, Overloaded, Unavailable, from_info
from serve_app.types import GenerateRequest

logger = logging.getLogger(__name__)

LAST_DELTA_WAIT_S: Final = 5.0  # the call may return before the channel delivered all
LOST: Final = "the model's process ended; try again"
GONE: Final = "the model is restarting; try again"


class ReplicaLeaving(Unavailable):
    """The replica was told to stop, and takes nothing new. Another one may."""


class Calls:
    """The open calls of one model, of requests and questions."""

    def __init__(self, handle: DeploymentHandle, receiver: Receiver, quarantine: Quarantine) -> None:
        self.handle = handle
        self.receiver = receiver
        self.quarantine = quarantine
        self.watching: set[asyncio.Task[None]] = set()  # each learns how one call ended
        self.open: dict[Any, Callable[[], None]] = {}  # Serve's response -> how to end its request

    @property
    def is_waited_for(self) -> bool:
        """Whether a call is open that no replica has taken yet."""
        return not all(map(is_taken, self.open))

    def let_go(self) -> None:
        """The model's replicas are gone: end the calls that no replica had taken."""
        for response, end in tuple(self.open.items()):
            if not is_taken(response):
                end()


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
        """Sends `sent`, which is `request` or its rest. `on_leaving`: see `Receiver.open`.

        None: nothing is sent, and the call has failed as if no replica had taken it.
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
        calls.open[self._response] = self._let_go
        self._watching = asyncio.ensure_future(self._watch())
        calls.watching.add(self._watching)
        self._watching.add_done_callback(calls.watching.discard)

    def close(self) -> None:
        """Take no more deltas, and cancel the call unless it ended."""
        self.inbox.close()
        end = self._calls.open.pop(self._response, None)
        if end is not None and self._watching is not None and not (self.inbox.ended or self._watching.done()):
            self._response.cancel()

    def _let_go(self) -> None:
        """The model's replicas are gone."""
        self.inbox.fail(Unavailable(GONE, retry_after_s=2.0))

    def hand_over(self) -> None:
        """Close: another replica has the request now, and this one forgets it."""
        self.inbox.abandon()
        self.close()

    def lose(self) -> None:
        """The replica is lost. The call is left alone, so that it can tell whether the process ended."""
        self.inbox.close()
        self._calls.open.pop(self._response, None)

    async def _watch(self) -> None:
        """Learn how the call ended. The channel has told already if all went well."""
        inbox, id = self.inbox, self.inbox.key
        try:
            answer = await self._response
        except asyncio.CancelledError:
            inbox.fail(GenerationFailed("the request was cancelled"))
        except BackPressureError:
            inbox.fail(Overloaded("the model's queue is full; try again", retry_after_s=1.0))
        except (RayError, RayServeException) as failure:
            logger.warning("request %s: the call to the model failed: %s", id, type(failure).__name__)
            if isinstance(failure, RayError):
                self.cause = BROKEN
            if isinstance(failure, ActorDiedError):
                self.cause = KILLED
                is_barren = not inbox.started
                self._calls.quarantine.blame(self._request, failure.actor_id or "", is_barren=is_barren)
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
                self.cause = BROKEN  # the replica has noticed first that the connection broke
                error = ReplicaLost(BROKEN)
            elif refused.is_leaving:
                error = ReplicaLeaving(error.message, retry_after_s=error.retry_after_s)
            inbox.fail(error)
