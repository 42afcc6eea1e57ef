"""Budgets that all gateways share: one `Limiter` keeps them, and gateways make claims through `SharedQuota`.

A gateway has one open call to the limiter at a time. Claims and settlements that arrive meanwhile go with the
next call, so a burst of claims takes only a few calls.

The answer to a call may get lost, because the limiter dies or does not answer in time. The claims of that
call are then refused (`Unavailable`) and never sent again. The limiter learns this from the next call: a
gateway numbers its calls, and names the last answered one in each. If the answer to a call was lost, the
limiter undoes that call before it handles the next. A call that Serve sends twice, or that arrives after the
gateway's next call, changes nothing. So no claim is granted twice, and no settlement is counted twice.

A gateway that dies leaves its claims open. A living gateway calls every few seconds, even if it has no
claims; when a gateway is silent for `LEASE_S`, its claims are given back.

After a restart, a limiter has lost all earlier claims, and begins with full budgets. So after a crash each
budget may be granted once more, but no more than that.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from ray import serve
from ray.serve import Deployment
from ray.serve.handle import DeploymentHandle

from serve_app.accounts.open_claims import Reservations
from serve_app.accounts.token_buckets import Buckets, add, check, returned
from serve_app.deployments.defaults import HEALTH, SURGE_PERCENT
from serve_app.deployments.logs import log_as_json
from serve_app.deployments.memory import be_spared
from serve_app.deployments.replica_port import keep_private
from serve_app.errors import Unavailable
from serve_app.types import Draw, Verdict

logger = logging.getLogger(__name__)

WAIT_S: Final = 2.0  # for a verdict: a hundred times the usual time, and still short for a client
PAUSE_S: Final = 0.25  # after a failed call, so that a limiter that is away is not called in a loop
RETRY_AFTER_S: Final = 1.0  # for clients: Serve replaces a limiter within seconds
BEAT_S: Final = 5.0  # an idle gateway calls this often; see LEASE_S
MAX_SETTLEMENTS: Final = 10_000  # buckets with settlements not yet sent: some megabytes
MAX_GATEWAYS: Final = 1_024  # whose last call is known; a restarted gateway is a new one
MAX_ONGOING: Final = 10_000  # calls, one per gateway: the limiter never queues


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A gateway's call to the limiter. The answer is a list of `Verdict`, one for each claim."""

    gateway: str  # unique to one run of one gateway
    number: int  # from 1, one more with each call of this gateway
    answered: int  # the latest call whose answer arrived; 0: none
    settlements: list[Draw]
    claims: list[tuple[Draw, ...]]


_encoder = msgspec.msgpack.Encoder()
_call_decoder: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call)
_answer_decoder: msgspec.msgpack.Decoder[list[Verdict]] = msgspec.msgpack.Decoder(list[Verdict])


@dataclass(frozen=True, slots=True)
class _Done:
    """The last call of a gateway, until its answer is known to have arrived."""

    number: int
    answer: bytes
    taken: tuple[Draw, ...]  # by its settlements and its granted claims


class Limiter:
    """Keeps the buckets of the cluster. There must be only one replica, or budgets would not be shared."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        log_as_json()
        be_spared()
        keep_private()
        self._buckets = Buckets(clock)
        self._reservations = Reservations(clock)
        self._done: OrderedDict[str, _Done] = OrderedDict()

    async def take(self, payload: bytes) -> bytes:
        """Process the settlements and claims of the `Call` in `payload`.

        Never waits, so one call is handled after the other. Settlements are processed before claims.
        """
        call = _call_decoder.decode(payload)
        done = self._done.pop(call.gateway, None)
        if done is not None and call.number <= done.number:
            self._done[call.gateway] = done
            return done.answer if call.number == done.number else b""  # late: given up long ago
        sums: dict[str, Draw] = {}
        if done is not None and done.number > call.answered:  # its answer was lost: undo it
            add(sums, [replace(draw, amount=-draw.amount, released=-draw.released) for draw in done.taken])
        add(sums, call.settlements)  # they include those of a lost call, which cancel out
        self._reservations.heard(call.gateway)
        self._buckets.settle(self._reservations.expired())
        self._buckets.settle(self._reservations.settled(call.gateway, sums.values()))
        verdicts = [self._buckets.claim(claim) for claim in call.claims]
        answer = _encoder.encode(verdicts)
        given = [c for c, verdict in zip(call.claims, verdicts, strict=True) if verdict.granted]
        granted = [draw for claim in given for draw in claim]
        self._reservations.claimed(call.gateway, granted)
        taken = (*call.settlements, *(replace(draw, released=-draw.amount) for draw in granted))
        self._done[call.gateway] = _Done(call.number, answer, taken)
        if len(self._done) > MAX_GATEWAYS:
            self._done.popitem(last=False)
        return answer


def limiter_deployment() -> Deployment:
    """The limiter, to be bound to the gateway of the `system` application."""
    return serve.deployment(Limiter).options(
        name="Limiter",
        num_replicas=1,
        max_ongoing_requests=MAX_ONGOING,
        graceful_shutdown_timeout_s=2 * WAIT_S,
        max_surge_percent=SURGE_PERCENT,
        **HEALTH,
        ray_actor_options={"num_cpus": 0.05},
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Claim:
    draws: tuple[Draw, ...]
    verdict: asyncio.Future[Verdict]  # cancelled if its caller is gone


class SharedQuota:
    """A gateway's `api.backend.Quota`. It must be made and used on one event loop, outside any request.

    Serve may cancel a call together with the request in whose context it was made. So the task that calls the
    limiter for all requests is started here.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        """`handle`: the handle of the one `Limiter`."""
        self._handle = handle
        self._gateway = secrets.token_hex(8)
        self._number = 0
        self._answered = 0
        self._claims: list[_Claim] = []
        self._settlements: dict[str, Draw] = {}
        self._dropped = 0
        self._away = False
        self._closed = False
        self._wake = asyncio.Event()
        self._sender = asyncio.create_task(self._send())

    async def claim(self, draws: Sequence[Draw]) -> Verdict:
        """Take all of `draws`, or nothing.

        Raises Unavailable if the limiter does not answer within `WAIT_S`, and ValueError for draws that no
        bucket can hold. If the caller is cancelled while it waits, a later grant is given back.
        """
        for draw in draws:
            check(draw)
        if self._closed:
            raise _unavailable()
        claim = _Claim(tuple(draws), asyncio.get_running_loop().create_future())
        self._claims.append(claim)
        self._wake.set()
        try:
            async with asyncio.timeout(WAIT_S):
                return await claim.verdict
        except TimeoutError:
            self._abandon(claim)
            raise _unavailable() from None
        except asyncio.CancelledError:
            self._abandon(claim)
            raise

    def settle(self, draws: Sequence[Draw]) -> None:
        """Take `amount` more from each bucket; a negative amount is given back. Never waits or fails.

        While the limiter cannot be reached, settlements are kept, summed by bucket. Beyond `MAX_SETTLEMENTS`
        buckets, settlements for further buckets are dropped. Buckets fill by themselves.
        """
        for draw in draws:
            try:
                check(draw, signed=True)
            except ValueError:
                logger.exception("a settlement of %s was dropped", draw.unit)
                continue
            if draw.bucket in self._settlements or len(self._settlements) < MAX_SETTLEMENTS:
                add(self._settlements, (draw,))
            else:
                self._dropped += 1
        self._wake.set()

    async def close(self) -> None:
        """Send the remaining claims and settlements, for at most `WAIT_S`. Claims that have no answer by then
        raise Unavailable."""
        self._closed = True
        self._wake.set()
        await asyncio.wait({self._sender}, timeout=WAIT_S)
        self._sender.cancel()
        await asyncio.wait({self._sender})
        for claim in self._claims:
            _refuse(claim)

    def _abandon(self, claim: _Claim) -> None:
        """Give back a grant that has just arrived, because the task that called `claim` is gone."""
        if claim.verdict.cancelled():
            return  # not answered yet; `_deliver` gives back what is granted
        if claim.verdict.exception() is None and claim.verdict.result().granted:
            self.settle(returned(claim.draws))

    async def _send(self) -> None:
        """Call the limiter whenever there are claims or settlements, one call at a time."""
        while not (self._closed and not self._claims and not self._settlements):
            is_due = await self._woken()
            self._wake.clear()
            claims = [claim for claim in self._claims if not claim.verdict.done()]
            settlements, self._claims, self._settlements = self._settlements, [], {}
            if not claims and not settlements and not is_due:
                continue
            try:
                verdicts = await self._call(claims, settlements)
                for claim, verdict in zip(claims, verdicts, strict=True):
                    self._deliver(claim, verdict)
            except Exception as error:
                self._note_failure(error)
                # Kept for the next call: the limiter first undoes this one, if it was processed.
                newer, self._settlements = self._settlements, settlements
                self.settle(tuple(newer.values()))
            finally:
                for claim in claims:
                    _refuse(claim)
            if self._away:
                await asyncio.sleep(PAUSE_S)

    async def _woken(self) -> bool:
        """Wait for claims or settlements. Returns True if there were none for `BEAT_S`, so that a call is
        due."""
        if not self._number:  # the limiter does not know this gateway yet
            await self._wake.wait()
            return False
        try:
            async with asyncio.timeout(BEAT_S):
                await self._wake.wait()
        except TimeoutError:
            return True
        return False

    async def _call(self, claims: Sequence[_Claim], settlements: dict[str, Draw]) -> list[Verdict]:
        self._number += 1
        call = Call(
            self._gateway,
            self._number,
            self._answered,
            list(settlements.values()),
            [claim.draws for claim in claims],
        )
        try:
            async with asyncio.timeout(WAIT_S):
                answer = await self._handle.take.remote(_encoder.encode(call))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ConnectionError("the call was cancelled by Serve") from None
        verdicts = _answer_decoder.decode(answer)
        if len(verdicts) != len(claims):
            raise ValueError(f"{len(verdicts)} verdicts on {len(claims)} claims")
        self._answered = self._number
        if self._away:
            logger.info("the limiter answers again; %d settlements were dropped meanwhile", self._dropped)
        self._away, self._dropped = False, 0
        return verdicts

    def _deliver(self, claim: _Claim, verdict: Verdict) -> None:
        if not claim.verdict.done():
            claim.verdict.set_result(verdict)
        elif verdict.granted:  # the caller is gone
            self.settle(returned(claim.draws))

    def _note_failure(self, error: Exception) -> None:
        if not self._away:
            logger.warning("the limiter does not answer: %s", type(error).__name__)
        self._away = True


def _refuse(claim: _Claim) -> None:
    """Make `claim` raise Unavailable if the limiter has not yet decided on the claim."""
    if not claim.verdict.done():
        claim.verdict.set_exception(_unavailable())


def _unavailable() -> Unavailable:
    return Unavailable("the rate limiter does not answer; try again", retry_after_s=RETRY_AFTER_S)
