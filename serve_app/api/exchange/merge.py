"""The deltas of one body: those of its prompts, merged, checked and counted.

Knows no HTTP. Whoever consumes it closes it, which aborts what still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from serve_app.api.backend import Backend
from serve_app.errors import GenerationFailed, from_info
from serve_app.types import FinishReason, GenerateRequest, Overflow, TokenDelta, Usage

Step = list[tuple[int, TokenDelta]]  # (prompt, delta), in order of arrival

INCOMPLETE = "the answer is incomplete; the request may be retried"


class Generation:
    """All prompts of one body under way."""

    def __init__(
        self, backend: Backend, requests: Sequence[GenerateRequest], *, at_once: int | None = None
    ) -> None:
        """`at_once`: most prompts under way, so that a body never overflows an idle queue by itself."""
        self._backend = backend
        self._slots = asyncio.Semaphore(min(len(requests), at_once or len(requests)))
        self._requests = requests
        self._open = {(p, i) for p, request in enumerate(requests) for i in range(request.n)}
        self._usage = [Usage()] * len(requests)

    @property
    def usage(self) -> Usage:
        """Tokens of all prompts so far."""
        if len(self._usage) == 1:
            return self._usage[0]
        return Usage.total(self._usage)

    async def steps(self) -> AsyncGenerator[Step, None]:
        """The deltas as they come, but those of progress. Raises ServeError; ends when every choice ended."""
        source = self._single() if len(self._requests) == 1 else self._merged()
        async with aclosing(source) as steps:
            async for step in steps:
                for prompt, delta in step:
                    self._note(prompt, delta)
                if any(delta.is_progress for _, delta in step):
                    step = [each for each in step if not each[1].is_progress]
                if step:
                    yield step
        if self._open:
            raise GenerationFailed(INCOMPLETE)

    def cut(self) -> Step:
        """Deltas that end every open choice where it is, if all requests would rather be cut than fail."""
        if any(request.overflow is not Overflow.TRUNCATE for request in self._requests):
            return []
        return [
            (
                prompt,
                TokenDelta(
                    request_id=self._requests[prompt].id,
                    index=index,
                    finish=FinishReason.LENGTH,
                    usage=self._usage[prompt],
                ),
            )
            for prompt, index in sorted(self._open)
        ]

    def _note(self, prompt: int, delta: TokenDelta) -> None:
        self._usage[prompt] = delta.usage
        if delta.finish is FinishReason.ERROR:
            raise GenerationFailed(INCOMPLETE) if delta.error is None else from_info(delta.error)
        if delta.finish is not None:
            self._open.discard((prompt, delta.index))

    async def _single(self) -> AsyncGenerator[Step, None]:
        async with aclosing(closable(self._backend.generate(self._requests[0]))) as source:
            async for deltas in source:
                yield [(0, delta) for delta in deltas]

    async def _merged(self) -> AsyncGenerator[Step, None]:
        queue: asyncio.Queue[Step | Exception | None] = asyncio.Queue()
        tasks = [asyncio.ensure_future(self._pump(i, r, queue)) for i, r in enumerate(self._requests)]
        try:
            running = len(tasks)
            while running:
                item = await queue.get()
                if item is None:
                    running -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self, prompt: int, request: GenerateRequest, queue: asyncio.Queue[Step | Exception | None]
    ) -> None:
        try:
            async with self._slots, aclosing(closable(self._backend.generate(request))) as source:
                async for deltas in source:
                    queue.put_nowait([(prompt, delta) for delta in deltas])
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)


def closable(source: AsyncIterator[list[TokenDelta]]) -> Any:
    """Generators have `aclose`; a plain iterator without one has nothing to release."""
    return source if hasattr(source, "aclose") else _generator(source)


async def _generator(source: AsyncIterator[list[TokenDelta]]) -> AsyncGenerator[list[TokenDelta], None]:
    async for deltas in source:
        yield deltas
