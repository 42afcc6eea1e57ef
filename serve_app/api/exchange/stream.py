"""An answer as a stream of events, or as one body.

The status line waits for the first deltas, so that an early failure gets a proper status, unless a comment
that keeps the connection alive was sent before. After the status line a failure becomes an error event, so a
broken stream never ends like a complete one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing

from serve_app.api.context import RequestContext
from serve_app.api.edge.body import ClientGone
from serve_app.api.edge.connection import Writer
from serve_app.api.exchange.dispatch import Attempt, too_late
from serve_app.api.protocol.dialect import Choice, PromptDelta, Renderer
from serve_app.errors import DeadlineExceeded, GenerationFailed, ServeError
from serve_app.telemetry import Metrics, Timings
from serve_app.types import Usage

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
    keep: Callable[[Usage], Awaitable[None]],
) -> None:
    """Stream the deltas of `attempt`. Raises ServeError only before the first byte, ClientGone at any time.

    `deadline` is in the event loop's time. `keep` is called before the end of a complete stream is sent.
    """
    started = has_tensors = False

    def emit(deltas: list[PromptDelta]) -> Awaitable[None]:
        """Runs for each event. Only the first event and large events need a coroutine here."""
        if not started or _has_tensors(deltas):
            return emit_slowly(deltas)
        events = _render(renderer, deltas)
        return writer.body(events, more=True) if events else _nothing()

    async def emit_slowly(deltas: list[PromptDelta]) -> None:
        nonlocal started, has_tensors
        # Rendered before the status line: whatever could fail here is still a status.
        if _has_tensors(deltas):
            has_tensors = True
            events = await asyncio.to_thread(_render, renderer, deltas)
        else:
            events = _render(renderer, deltas)
        if not started:
            await writer.start(200, {**headers, **STREAM_HEADERS})
        if events or not started:
            started = True
            await writer.body(events, more=True)

    failure = await follow(attempt, emit, context, metrics, deadline)
    if failure is not None:
        await writer.body(renderer.broken(failure))
        return
    usage = attempt.stream.usage
    await keep(usage)
    await writer.body(await rendered(lambda: renderer.end(usage), is_large=has_tensors))


async def rendered(work: Callable[[], bytes], *, is_large: bool) -> bytes:
    """The result of `work`; in a thread if it takes long enough to delay other clients."""
    return await asyncio.to_thread(work) if is_large else work()


async def follow(
    attempt: Attempt,
    emit: Callable[[list[PromptDelta]], Awaitable[None]],
    context: RequestContext,
    metrics: Metrics,
    deadline: float,
) -> ServeError | None:
    """Pass all deltas to `emit`; returns the error that ended the stream too early, if any.

    Errors that `emit` raises for the first deltas are passed on; ClientGone always is. If the requests allow
    truncation, a stream that reaches its deadline ends without an error.
    """
    timings = metrics.timings(context.endpoint, context.entity)
    failure: ServeError | None = None
    with closing(attempt.stream) as stream:
        context.first_token_s = time.monotonic() - context.started
        timings.first(context.first_token_s)
        note_engine(attempt.first, timings, context)
        await emit(attempt.first)
        last = time.monotonic()
        try:
            async with asyncio.timeout_at(deadline):
                while deltas := await stream.get():
                    now = time.monotonic()
                    timings.next(now - last)
                    last = now
                    # The first delta of each prompt, of which several may be in one event.
                    if len(deltas) > 1 or deltas[0][1].timing is not None:
                        note_engine(deltas, timings, context)
                    await emit(deltas)
        except ServeError as error:
            failure = error
        except TimeoutError:
            failure = too_late()
        except ClientGone:
            raise
        except Exception:
            logger.exception("request %s: streaming failed", context.id)
            failure = GenerationFailed("an internal error ended the answer; the request may be retried")
    if isinstance(failure, DeadlineExceeded) and (rest := stream.cut()):
        await emit(rest)
        failure = None
    if failure is not None:
        note_broken(failure, context)
    return failure


def note_broken(failure: ServeError, context: RequestContext) -> None:
    """Record the error that ended an answer after its first byte."""
    context.outcome = failure.condition.value
    logger.warning("request %s: broken after its first byte: %s", context.id, type(failure).__name__)


async def _nothing() -> None:
    """An awaitable that does nothing."""


def _has_tensors(deltas: list[PromptDelta]) -> bool:
    for _, delta in deltas:  # noqa: SIM110  # runs for each event, where a generator costs more than it reads
        if delta.tensors:
            return True
    return False


def _render(renderer: Renderer, deltas: list[PromptDelta]) -> bytes:
    if len(deltas) == 1:
        return renderer.event(*deltas[0])
    return b"".join([renderer.event(prompt, delta) for prompt, delta in deltas])


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

    def add(deltas: list[PromptDelta]) -> None:
        for prompt, delta in deltas:
            choices.setdefault(prompt * choices_per_prompt + delta.index, Choice()).add(delta)

    try:
        async with asyncio.timeout_at(deadline):
            deltas = attempt.first
            while deltas:
                note_engine(deltas, timings, context)
                add(deltas)
                deltas = await attempt.stream.get()
    except (TimeoutError, DeadlineExceeded):
        rest = attempt.stream.cut()
        if not rest:
            raise too_late() from None
        add(rest)
    return [choices[index] for index in sorted(choices)]


def note_engine(deltas: list[PromptDelta], timings: Timings, context: RequestContext) -> None:
    """Record the engine's measurements in a delta, if any."""
    for _, delta in deltas:
        if delta.timing is not None:
            timings.queue(delta.timing.queue_s)
            if context.queue_s is None:
                context.queue_s = delta.timing.queue_s
            if context.first_token_s is None:  # the first token of an answer that is sent whole
                context.first_token_s = delta.timing.first_token_s
