"""Requests that their clients may stop by an id of their own, while this gateway runs them.

Another gateway of the same server knows nothing of them: a stop reaches the request when
it reaches its gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, NamedTuple

from serve_app.api.backend import Backend
from serve_app.api.context import RequestContext
from serve_app.api.exchange.merge import closable
from serve_app.types import EngineStats, FinishReason, GenerateRequest, ModelInfo, Question, TokenDelta, Usage
from serve_app.types.question import ReplyT


class RunKey(NamedTuple):
    """Whose request, to which endpoint, under which id: nobody stops a stranger's."""

    key_id: str
    endpoint: str
    client_id: str

    @classmethod
    def of(cls, context: RequestContext, endpoint: str, client_id: str) -> RunKey:
        """Of the caller whose request `context` is."""
        return cls(context.caller.key_id if context.caller else "", endpoint, client_id)


class Running:
    """What can be stopped. Several requests may have one id: the newest is meant."""

    def __init__(self) -> None:
        self._stops: dict[RunKey, list[Callable[[], None]]] = {}

    @contextmanager
    def entry(self, key: RunKey, stop: Callable[[], None]) -> Iterator[None]:
        """`stop` is called, at most once, while the block runs."""
        stops = self._stops.setdefault(key, [])
        stops.append(stop)
        try:
            yield
        finally:
            if stop in stops:
                stops.remove(stop)
            if not stops:
                self._stops.pop(key, None)

    def stop(self, key: RunKey) -> bool:
        """Stop the newest request of this key; whether there was one."""
        stops = self._stops.get(key)
        if not stops:
            return False
        stops.pop()()
        return True

    def stop_all(self, key: RunKey) -> None:
        """Stop every request of this key, as many as the prompts of a call."""
        while self.stop(key):
            pass


class StoppableBackend:
    """A backend for one call: when it is stopped, its answer ends like one aborted."""

    def __init__(self, backend: Backend, running: Running, key: RunKey) -> None:
        self._backend = backend
        self._running = running
        self._key = key
        self._was_stopped = False

    def is_ready(self, app: str) -> bool:
        return self._backend.is_ready(app)

    def missing(self, app: str) -> str | None:
        return self._backend.missing(app)

    async def recovery(self, apps: Sequence[str], within_s: float) -> bool:
        return await self._backend.recovery(apps, within_s)

    def info(self, app: str) -> ModelInfo | None:
        return self._backend.info(app)

    async def model(self, app: str) -> ModelInfo:
        return await self._backend.model(app)

    async def ask(self, app: str, question: Question[ReplyT]) -> ReplyT:
        return await self._backend.ask(app, question)

    def stats(self) -> dict[str, EngineStats]:
        return self._backend.stats()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        """As the backend's; after a stop what has come, and a last delta with finish ABORT."""
        # A task of its own for the source, so that a stop need not interrupt anybody.
        items: asyncio.Queue[list[TokenDelta] | Exception | None] = asyncio.Queue()
        stopped: list[TokenDelta] = []
        if self._was_stopped:  # before the turn of this prompt of the call
            yield _aborted(request, range(request.n), Usage())
            return
        pump = asyncio.ensure_future(self._pump(request, items))
        usage = Usage()
        running = set(range(request.n))  # choices
        try:
            with self._running.entry(self._key, partial(items.put_nowait, stopped)):
                while (item := await items.get()) is not None:
                    if isinstance(item, Exception):
                        raise item
                    if item is stopped:
                        self._was_stopped = True
                        yield _aborted(request, sorted(running), usage)
                        return
                    usage = item[-1].usage if item else usage
                    running -= {delta.index for delta in item if delta.finish is not None}
                    yield item
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self, request: GenerateRequest, items: asyncio.Queue[Any]) -> None:
        try:
            async with aclosing(closable(self._backend.generate(request))) as source:
                async for deltas in source:
                    items.put_nowait(deltas)
            items.put_nowait(None)
        except Exception as error:
            items.put_nowait(error)


def _aborted(request: GenerateRequest, choices: Iterable[int], usage: Usage) -> list[TokenDelta]:
    return [
        TokenDelta(request_id=request.id, index=index, finish=FinishReason.ABORT, usage=usage)
        for index in choices
    ]
