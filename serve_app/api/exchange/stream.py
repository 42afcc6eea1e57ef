"""A generation as a stream of events, or as one body.

The status line waits for the first deltas, so that an early failure is a proper status.
After it a failure is an error event: a broken stream never ends like a complete one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing

from serve_app.api.context import RequestContext
from serve_app.api.dialects.base import Choice, Renderer
from serve_app.api.edge.body import ClientGone
from serve_app.api.edge.connection import Writer
from serve_app.api.exchange.dispatch import Attempt, too_late
from serve_app.api.exchange.merge import Step
from serve_app.errors import DeadlineExceeded, GenerationFailed, ServeError
from serve_app.telemetry import Metrics, Timings

logger = logging.getLogger(__name__)

STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def send_stream(
    writer: Writer,
    attempt: Attempt,
    renderer: Renderer,
    headers: Mapping[str, str],
    context: RequestContext,
    metrics: Metrics,
    deadline: float,
) -> None:
    """Stream what `attempt` brings. Raises ServeError only before the first byte, ClientGone at any time.

    `deadline` is in the event loop's time.
    """
    started = has_tensors = False

    async def emit(step: Step) -> None:
        nonlocal started, has_tensors
        is_large = any(delta.tensors for _, delta in step)
        has_tensors |= is_large
        # Rendered before the status line: whatever could fail here is still a status.
        events = await rendered(lambda: _render(renderer, step), is_large=is_large)
        if not started:
            await writer.start(200, {**headers, **STREAM_HEADERS})
        if events or not started:
            started = True
            await writer.body(events, more=True)

    failure = await follow(attempt, emit, context, metrics, deadline)
    if failure is not None:
        await writer.body(renderer.broken(failure))
        return
    usage = attempt.generation.usage
    await writer.body(await rendered(lambda: renderer.end(usage), is_large=has_tensors))


async def rendered(work: Callable[[], bytes], *, is_large: bool) -> bytes:
    """What `work` writes; in a thread if that takes long enough for other clients to notice."""
    return await asyncio.to_thread(work) if is_large else work()


async def follow(
    attempt: Attempt,
    emit: Callable[[Step], Awaitable[None]],
    context: RequestContext,
    metrics: Metrics,
    deadline: float,
) -> ServeError | None:
    """Give each step to `emit`, and return what ended them before their end, if anything did.

    What `emit` raises at the first step passes through, ClientGone at any. A deadline that leaves
    something to say is an end.
    """
    timings = metrics.timings(context.endpoint, context.entity)
    async with aclosing(attempt.rest) as steps:
        step = attempt.first
        context.first_token_s = time.monotonic() - context.started
        timings.first(context.first_token_s)
        note_engine(step, timings, context)
        await emit(step)
        last = time.monotonic()
        failure: ServeError | None = None
        try:
            async with asyncio.timeout_at(deadline):
                async for step in steps:
                    now = time.monotonic()
                    timings.next(now - last)
                    last = now
                    await emit(step)
        except ServeError as error:
            failure = error
        except TimeoutError:
            failure = too_late()
        except ClientGone:
            raise
        except Exception:
            logger.exception("request %s: streaming failed", context.id)
            failure = GenerationFailed("an internal error ended the answer; the request may be retried")
    if isinstance(failure, DeadlineExceeded) and (rest := attempt.generation.cut()):
        await emit(rest)
        failure = None
    if failure is not None:
        context.outcome = failure.condition
        logger.warning("request %s: broken after its first byte: %s", context.id, type(failure).__name__)
    return failure


def _render(renderer: Renderer, step: Step) -> bytes:
    if len(step) == 1:
        return renderer.event(*step[0])
    return b"".join([renderer.event(prompt, delta) for prompt, delta in step])


async def collect(
    attempt: Attempt,
    choices_per_prompt: int,
    context: RequestContext,
    metrics: Metrics,
    deadline: float,
) -> list[Choice]:
    """All choices of `attempt`, in the order of their index. Raises ServeError."""
    timings = metrics.timings(context.endpoint, context.entity)
    choices: dict[int, Choice] = {}

    def add(step: Step) -> None:
        for prompt, delta in step:
            choices.setdefault(prompt * choices_per_prompt + delta.index, Choice()).add(delta)

    try:
        async with asyncio.timeout_at(deadline), aclosing(attempt.steps()) as steps:
            async for step in steps:
                note_engine(step, timings, context)
                add(step)
    except (TimeoutError, DeadlineExceeded):
        rest = attempt.generation.cut()
        if not rest:
            raise too_late() from None
        add(rest)
    return [choices[index] for index in sorted(choices)]


def note_engine(step: Step, timings: Timings, context: RequestContext) -> None:
    """Note what the engine itself measured, where a delta says so."""
    for _, delta in step:
        if delta.timing is not None:
            timings.queue(delta.timing.queue_s)
            if context.queue_s is None:
                context.queue_s = delta.timing.queue_s
            if context.first_token_s is None:  # the first token of an answer that is sent whole
                context.first_token_s = delta.timing.first_token_s
