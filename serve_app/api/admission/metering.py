"""An admitted request's use of budgets, and its records in the journal.

Before a request runs, its prompt's estimated size and the largest possible output are reserved. Afterwards,
whatever the request did not use is given back. Its usage is the work done, even if the client hung up: one
request, and the tokens that were computed and generated. If the server fails and the client got nothing, the
request is free. Depends neither on how budgets are stored nor on where the journal is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, Protocol

from serve_app.api.admission.budget_reservation import cost
from serve_app.api.admission.draws import draws_of, refusal_of, settlement_of, tightest
from serve_app.api.admission.progress import Progress
from serve_app.api.admission.under_way import UnderWay
from serve_app.api.backend import Journal, Quota
from serve_app.api.context import RequestContext
from serve_app.api.edge.body import ClientGone
from serve_app.endpoints.endpoint import Endpoint, Price
from serve_app.errors import (
    BudgetSpent,
    DeadlineExceeded,
    EngineRefused,
    GenerationFailed,
    Overloaded,
    ServeError,
    Unavailable,
)
from serve_app.types import Draw, Usage, UsageRecord

RETRY_S: Final = 5.0  # Retry-After while usage cannot be written: an operator must make space
_OURS: Final = (Overloaded, Unavailable, EngineRefused, GenerationFailed)


class UsageSource(Protocol):
    """The source of a request's usage so far."""

    @property
    def usage(self) -> Usage: ...

    @property
    def migrations(self) -> int: ...


class Meter:
    """Admits requests within the budgets of their endpoint, and writes their usage down."""

    def __init__(self, quota: Quota, journal: Journal, *, usage_required: bool = False) -> None:
        """`usage_required`: whether to refuse a request whose usage cannot be written down."""
        self._quota = quota
        self._journal = journal
        self._usage_required = usage_required
        self._progress = Progress(journal)
        self.under_way = UnderWay()
        self.on_begin: Callable[[], None] = lambda: None  # called with each request that is admitted

    @property
    def journal(self) -> Journal:
        """Where records go."""
        return self._journal

    @property
    def is_open(self) -> bool:
        """Whether the state of the usage records allows requests to be admitted."""
        return not self._usage_required or self._journal.problem is None

    @property
    def problem(self) -> str | None:
        """The reason why usage records cannot be written to the journal; None: they can."""
        if self._journal.problem is None:
            return None
        return (
            f"usage records are not written ({self._journal.problem}): "
            f"{self._journal.waiting} wait in memory, "
            f"{self._journal.dropped} are lost"
        )

    @asynccontextmanager
    async def admit(
        self, endpoint: Endpoint, reserved: Callable[[], Usage], context: RequestContext
    ) -> AsyncIterator[Metered]:
        """Account for one call. Raises QuotaExceeded, or Unavailable if usage must be recorded but cannot be.

        A caller whose key has spent its budget gets a QuotaExceeded that says so.

        `reserved` returns the most that the call may use; since it may read every prompt, it is called only
        for endpoints with budgets. The block sets the usage of the `Metered`. However the block ends, the
        reservation is settled and one record is closed.
        """
        if not self.is_open:
            raise Unavailable("usage cannot be written down at present; try again", retry_after_s=RETRY_S)
        if context.caller is not None and context.caller.over_budget:
            raise BudgetSpent(context.caller.over_budget)
        draws = draws_of(endpoint, context.caller, reserved)
        if draws:
            await self._claim(draws, context)
        metered = Metered(endpoint, context, self._progress)
        self._journal.opened(metered.record)
        self.under_way.begin(metered)
        self.on_begin()
        outcome = "failed"
        try:
            yield metered
            outcome = "finished" if context.outcome is None else "failed"
        except (ClientGone, asyncio.CancelledError):
            outcome = "aborted"
            raise
        except Exception as error:
            # A stream that broke is marked in `context`. Any other failure came before the first byte.
            metered.is_free = context.outcome is None and _is_ours(error)
            raise
        finally:
            if draws:
                self._quota.settle(
                    settlement_of(draws, metered.usage, metered.price, is_free=metered.is_free)
                )
            self._progress.end(metered.so_far)
            self.under_way.end(metered)
            self._journal.closed(metered.close(outcome))

    async def _claim(self, draws: Sequence[Draw], context: RequestContext) -> None:
        verdict = await self._quota.claim(draws)
        context.budgets = tightest(verdict.budgets)
        if not verdict.granted:
            raise refusal_of(draws, verdict)


class Metered:
    """One running call. The caller sets `usage` when it is known, or names a source that reports it."""

    def __init__(self, endpoint: Endpoint, context: RequestContext, progress: Progress) -> None:
        self._endpoint = endpoint
        self._context = context
        self._progress = progress
        self._usage = Usage()
        self._source: UsageSource | None = None
        self.is_free = False  # the call costs nothing
        self.has_price = True
        caller = context.caller
        self.record = UsageRecord(
            id=context.id,
            key_id=caller.key_id if caller else "",
            user=caller.owner if caller else "",
            groups=tuple(sorted(caller.groups)) if caller else (),
            endpoint=endpoint.name,
            entity=context.entity,
            kind=endpoint.kind,
            route=context.route,
            started=time.time() - (time.monotonic() - context.started),
            outcome="lost",
        )

    @property
    def who(self) -> tuple[str, str]:
        """The endpoint, and the entity that answers, or was tried last."""
        return self._endpoint.name, self._context.entity

    @property
    def price(self) -> Price | None:
        return self._endpoint.price if self.has_price else None

    @property
    def usage(self) -> Usage:
        """The work that was done so far."""
        return self._usage if self._source is None else self._source.usage

    @usage.setter
    def usage(self, usage: Usage) -> None:
        self._usage = usage

    def follow(self, source: UsageSource) -> None:
        """Take the usage from `source` from now on, even before the client gets anything."""
        self._source = source

    def deliver(self) -> None:
        """Called just before the client gets its first token; further tokens follow as they are generated."""
        self._progress.begin(self.so_far)

    def so_far(self) -> UsageRecord:
        """The record of the request if this gateway dies now."""
        return replace(self.close("lost"), status=200)  # the status of a stream

    def give_up(self, error: BaseException, asked: Callable[[], Usage]) -> None:
        """Note that a question failed. If the client left or the deadline passed, the usage is `asked`."""
        if isinstance(error, (asyncio.CancelledError, DeadlineExceeded)):
            self.usage = asked()

    def close(self, outcome: str) -> UsageRecord:
        context, usage = self._context, self.usage
        context.usage = usage
        price = self.price
        return replace(
            self.record,
            entity=context.entity,
            failed_over=context.failed_over,
            outcome=outcome,
            status=context.status,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.generated_tokens,
            discarded_tokens=usage.discarded_tokens,
            first_token_s=context.first_token_s,
            queue_s=context.queue_s,
            total_s=time.monotonic() - context.started,
            migrations=0 if self._source is None else self._source.migrations,
            cost=None if price is None else cost(price, Usage() if self.is_free else usage),
            currency=None if price is None else price.currency,
        )


def _is_ours(error: Exception) -> bool:
    """Whether the error is the server's own failure, rather than the client's or a deadline's."""
    return isinstance(error, _OURS) or not isinstance(error, ServeError)
