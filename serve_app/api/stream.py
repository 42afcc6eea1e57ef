"""A generation as a stream of events, or as one body.

The status line waits for the first deltas, so that an early failure is a proper status.
After it a failure is an error event: a broken stream never ends like a complete one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from serve_app.api.body import ClientGone
from serve_app.api.connection import Writer
from serve_app.api.context import RequestContext
from serve_app.api.dialects.base import Choice, Renderer
from serve_app.api.merge import Generation, Step
from serve_app.errors import DeadlineExceeded, GenerationFailed, ServeError
from serve_app.telemetry import Metrics

logger = logging.getLogger(__name__)

STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


async def send_stream(
    writer: Writer,
    generation: Generation,
    renderer: Renderer,
    headers: Mapping[str, str],
    context: RequestContext,
    metrics: Metrics,
    deadline: float,
) -> None:
    """Stream `generation`. Raises ServeError only before the first byte, ClientGone at any time.

    `deadline` is in the event loop's time.
    """
    timings = metrics.timings(context.model)
    async with aclosing(generation.steps()) as steps:
        step = await _first(steps, deadline)
        timings.first(time.monotonic() - context.started)
        timings.engine(step)
        # Rendered before the status line: whatever could fail here is still a status.
        events = _render(renderer, step)
        await writer.start(200, {**headers, **STREAM_HEADERS})
        await writer.body(events, more=True)
        last = time.monotonic()
        failure: ServeError | None = None
        try:
            async with asyncio.timeout_at(deadline):
                async for step in steps:
                    now = time.monotonic()
                    timings.next(now - last)
                    last = now
                    events = _render(renderer, step)
                    if events:
                        await writer.body(events, more=True)
        except ServeError as error:
            failure = error
        except TimeoutError:
            failure = _too_late()
        except ClientGone:
            raise
        except Exception:
            logger.exception("request %s: streaming failed", context.id)
            failure = GenerationFailed("an internal error ended the answer; the request may be retried")
    if failure is not None:
        context.outcome = failure.condition
        logger.warning("request %s: broken after its first byte: %s", context.id, type(failure).__name__)
    end = renderer.end(generation.usage) if failure is None else renderer.broken(failure)
    await writer.body(end)


def _render(renderer: Renderer, step: Step) -> bytes:
    if len(step) == 1:
        return renderer.event(*step[0])
    return b"".join([renderer.event(prompt, delta) for prompt, delta in step])


async def collect(
    generation: Generation,
    choices_per_prompt: int,
    context: RequestContext,
    metrics: Metrics,
    deadline: float,
) -> list[Choice]:
    """All choices of a generation, in the order of their index. Raises ServeError."""
    timings = metrics.timings(context.model)
    choices: dict[int, Choice] = {}
    try:
        async with asyncio.timeout_at(deadline), aclosing(generation.steps()) as steps:
            async for step in steps:
                timings.engine(step)
                for prompt, delta in step:
                    index = prompt * choices_per_prompt + delta.index
                    choices.setdefault(index, Choice()).add(delta)
    except TimeoutError:
        raise _too_late() from None
    return [choices[index] for index in sorted(choices)]


async def _first(steps: AsyncGenerator[Step, None], deadline: float) -> Step:
    try:
        async with asyncio.timeout_at(deadline):
            return await anext(steps)
    except TimeoutError:
        raise _too_late() from None


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("timeout: the request did not finish within its deadline")
