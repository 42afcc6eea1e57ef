"""Stored responses: fetches those that a body refers to, and stores an answer when it ends.

Depends neither on the responses' content nor on where they are stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, TypeVar

from serve_app.api.context import RequestContext
from serve_app.api.protocol.dialect import Choice, KeepsAnswer, Referring, Renderer
from serve_app.api.services import Services
from serve_app.errors import ServeError, Unauthenticated
from serve_app.types import Usage

logger = logging.getLogger(__name__)

KEEP_S: Final = 2.0  # for which the end of an answer waits until it is kept
_EXPANDED: Final = 4  # JSON is about this much larger than it is compressed

WorkT = TypeVar("WorkT")


async def completed(services: Services, context: RequestContext, work: WorkT | Referring[WorkT]) -> WorkT:
    """`work` with the responses that it refers to. Raises ServeError; Unavailable if the store is away."""
    if not isinstance(work, Referring):
        return work
    if context.caller is None:
        raise Unauthenticated("an API key is required")
    found = (
        {}
        if services.responses is None
        else await services.responses.recall(work.ids, work.last, context.caller)
    )
    size = sum(len(each.input) + len(each.response) for each in found.values())
    return await services.aside(size * _EXPANDED, work.complete, found)


async def keep(
    services: Services,
    context: RequestContext,
    renderer: Renderer,
    usage: Usage,
    choices: Iterable[Choice] = (),
) -> None:
    """Store the answer if required. Never fails: an answer that could not be stored says so."""
    if services.responses is None or context.caller is None or not isinstance(renderer, KeepsAnswer):
        return
    kept = renderer.to_keep(usage, choices)
    if kept is None:
        return
    try:
        async with asyncio.timeout(KEEP_S):
            await services.responses.keep(kept, context.caller)
    except (ServeError, TimeoutError) as error:
        logger.warning("request %s: its answer is not kept: %s", context.id, type(error).__name__)
        renderer.not_kept()
