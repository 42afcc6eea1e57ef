"""Shadow traffic: a share of an endpoint's requests is copied to another of its entities.

A copy starts when another entity has begun to answer. It has its own task, deadline and usage record; its
answer is discarded. A copy draws from no budget, has no price, and is queued behind all other requests to the
same model. Whatever happens to the copy, it does not affect the original request.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from serve_app.api.admission.estimates import BYTES_PER_TOKEN, most_used, tokens_in
from serve_app.api.context import RequestContext
from serve_app.api.exchange.call_stream import CallStream
from serve_app.api.exchange.dispatch import Attempt
from serve_app.api.protocol.dialect import Call
from serve_app.api.services import Services
from serve_app.endpoints.ai_gateway import Shadow
from serve_app.endpoints.endpoint import Endpoint, ServedEntity
from serve_app.errors import GenerationFailed, ServeError
from serve_app.limits import MAX_PRIORITY
from serve_app.types import EmbedRequest, GenerateRequest, Timing, Usage, UsageRecord

logger = logging.getLogger(__name__)

PRIORITY: Final = -MAX_PRIORITY - 1  # below the lowest that a client can ask for
ID_SUFFIX: Final = "-shadow"  # of a copy's id, after that of its request


@dataclass(slots=True)
class _Progress:
    """The progress of a copy."""

    started: float  # by time.monotonic
    usage: Callable[[], Usage] = Usage  # so far
    first_token_s: float | None = None
    queue_s: float | None = None

    def note(self, timing: Timing | None, *, is_stream: bool) -> None:
        """Record tokens. For a whole answer, the engine reports the time of the first token."""
        if self.first_token_s is None and is_stream:
            self.first_token_s = time.monotonic() - self.started
        if timing is not None and self.queue_s is None:
            self.queue_s = timing.queue_s
            if self.first_token_s is None:
                self.first_token_s = timing.first_token_s


Work = Callable[[ServedEntity, _Progress], Coroutine[Any, Any, None]]


def copy_generation(
    services: Services,
    context: RequestContext,
    endpoint: Endpoint,
    call: Call,
    requests: Sequence[GenerateRequest],
    attempt: Attempt,
    record: UsageRecord,
) -> None:
    """Copy `requests`, which `attempt` answers, if the endpoint has a shadow and its share includes them.

    Returns at once and never raises.
    """

    async def work(entity: ServedEntity, progress: _Progress) -> None:
        info = await services.backend.model(entity.app)
        copies = [
            replace(
                call.fit(request, info),
                id=_copy_id(request.id),
                parent_id=None if request.parent_id is None else _copy_id(request.parent_id),
                model=entity.app,
                priority=PRIORITY,
                record=None,
            )
            for request in requests
        ]
        with closing(CallStream(services.backend, copies, at_once=info.max_requests)) as stream:
            progress.usage = lambda: stream.usage
            while deltas := await stream.get():
                timing = next((delta.timing for _, delta in deltas if delta.timing is not None), None)
                progress.note(timing, is_stream=call.stream)

    def size() -> int:
        return most_used(endpoint, requests).prompt_tokens * BYTES_PER_TOKEN

    _copy(services, context, endpoint, attempt.entity, record, requests[0].timeout_s, size, work)


def copy_embedding(
    services: Services,
    context: RequestContext,
    endpoint: Endpoint,
    request: EmbedRequest,
    answered: ServedEntity,
    record: UsageRecord,
) -> None:
    """As `copy_generation`, for a request that embeds."""

    async def work(entity: ServedEntity, progress: _Progress) -> None:
        await services.backend.model(entity.app)
        embeddings = await services.backend.ask(entity.app, replace(request, id=_copy_id(request.id)))
        progress.usage = lambda: Usage(prompt_tokens=embeddings.prompt_tokens)

    def size() -> int:
        texts = (each for each in request.inputs if isinstance(each, str))
        return tokens_in(*texts) * BYTES_PER_TOKEN

    _copy(services, context, endpoint, answered, record, request.timeout_s, size, work)


def _copy(
    services: Services,
    context: RequestContext,
    endpoint: Endpoint,
    answered: ServedEntity,
    record: UsageRecord,
    limit_s: float | None,
    size: Callable[[], int],
    work: Work,
) -> None:
    """Start `work` for the shadow of `endpoint`, if there is one and it was not `answered` itself.

    `size` estimates how many bytes the copy keeps in memory.
    """
    shadow = endpoint.shadow
    if shadow is None or shadow.entity == answered.name or not _is_drawn(shadow):
        return
    entity = endpoint.entity(shadow.entity)
    if entity is None or not services.meter.is_open:
        return
    render_error = context.render_error
    opened = replace(
        record,
        id=_copy_id(record.id),
        entity=entity.name,
        started=time.time(),
        shadow=True,
        failed_over=(),
    )

    async def run() -> None:
        progress = _Progress(time.monotonic())
        services.meter.journal.opened(opened)
        outcome, status = "failed", 0
        try:
            with services.bodies.lease() as lease:
                lease.take(size())
                async with asyncio.timeout(limit_s):
                    await work(entity, progress)
            outcome, status = "finished", 200
        except asyncio.CancelledError:
            outcome = "aborted"
            raise
        except TimeoutError:
            status = 504
        except ServeError as error:
            status = render_error(error).status
        except Exception:
            logger.exception("request %s: its copy failed", record.id)
            status = render_error(GenerationFailed("")).status
        finally:
            closed = _closed(opened, progress, outcome, status)
            services.meter.journal.closed(closed)
            services.metrics.copy_done(closed)

    if not services.copies.start(endpoint.name, shadow.max_concurrent, run):
        services.metrics.copy_skipped(endpoint.name, entity.name)


def _closed(opened: UsageRecord, progress: _Progress, outcome: str, status: int) -> UsageRecord:
    usage = progress.usage()
    return replace(
        opened,
        outcome=outcome,
        status=status,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.generated_tokens,
        discarded_tokens=usage.discarded_tokens,
        first_token_s=progress.first_token_s,
        queue_s=progress.queue_s,
        total_s=time.monotonic() - progress.started,
    )


def _is_drawn(shadow: Shadow) -> bool:
    return random.random() * 100 < shadow.percentage


def _copy_id(id: str) -> str:
    return f"{id}{ID_SUFFIX}"
