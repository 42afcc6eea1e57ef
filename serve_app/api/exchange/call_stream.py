"""The deltas of one call: those of all its prompts, checked and counted.

Independent of HTTP. The reader of a stream must close it, which aborts the requests that are still running.
"""

from __future__ import annotations

from collections.abc import Sequence

from serve_app.api.backend import Backend, DeltaStream
from serve_app.api.exchange.merge import MergedStream
from serve_app.api.protocol.dialect import PromptDelta
from serve_app.errors import GenerationFailed, from_info
from serve_app.types import FinishReason, GenerateRequest, Overflow, TokenDelta, Usage

INCOMPLETE = "the answer is incomplete; the request may be retried"


class CallStream:
    """The answer of one entity to all prompts of a call, read by one task."""

    def __init__(
        self, backend: Backend, requests: Sequence[GenerateRequest], *, at_once: int | None = None
    ) -> None:
        """Sends the requests. Raises ServeError.

        `at_once` limits the prompts in flight, so that a single call never overflows an idle queue.
        """
        self._requests = requests
        self._prompts = {request.id: prompt for prompt, request in enumerate(requests)}
        self._open = {(p, i) for p, request in enumerate(requests) for i in range(request.n)}
        self._usage = [Usage()] * len(requests)
        self.clamped: int | None = None  # the limit of output tokens, if lower than requested
        self._is_stopped = False
        self._source: DeltaStream = (
            backend.generate(requests[0])
            if len(requests) == 1
            else MergedStream(backend, requests, at_once or len(requests))
        )

    @property
    def usage(self) -> Usage:
        """The tokens of all prompts so far."""
        return self._usage[0] if len(self._usage) == 1 else Usage.total(self._usage)

    @property
    def migrations(self) -> int:
        """How often an answer was moved to another replica so far."""
        return self._source.migrations

    async def get(self) -> list[PromptDelta]:
        """All deltas since the last call; waits until there is at least one. [] once every choice has ended.

        Progress deltas only change `usage`. Raises ServeError, also if the stream ends before all its choices
        have ended.
        """
        while deltas := await self._source.get():
            if found := self._checked(deltas):
                return found
        if not self._open:
            return []
        if self._is_stopped:
            found = self._ended(FinishReason.ABORT)
            self._open.clear()
            return found
        raise GenerationFailed(INCOMPLETE)

    def stop(self) -> None:
        """Abort the requests. Deltas that have arrived can still be read; then the open choices end with
        ABORT."""
        self._is_stopped = True
        self._source.close()

    def cut(self) -> list[PromptDelta]:
        """Deltas that end every open choice with LENGTH; [] unless all requests allow truncation."""
        if any(request.overflow is not Overflow.TRUNCATE for request in self._requests):
            return []
        return self._ended(FinishReason.LENGTH)

    def close(self) -> None:
        """Abort the requests that still run."""
        self._source.close()

    def _checked(self, deltas: list[TokenDelta]) -> list[PromptDelta]:
        """Count `deltas`, and drop progress deltas. If a delta carries a ServeError, raises it."""
        found = []
        for delta in deltas:
            prompt = self._prompts[delta.request_id]
            self._usage[prompt] = delta.usage
            if delta.clamped is not None:
                self.clamped = min(delta.clamped, self.clamped or delta.clamped)
            if delta.finish is not None:
                if delta.finish is FinishReason.ERROR:
                    raise GenerationFailed(INCOMPLETE) if delta.error is None else from_info(delta.error)
                self._open.discard((prompt, delta.index))
            if not delta.is_progress:
                found.append((prompt, delta))
        return found

    def _ended(self, finish: FinishReason) -> list[PromptDelta]:
        """A last delta for every open choice."""
        return [
            (
                prompt,
                TokenDelta(
                    request_id=self._requests[prompt].id,
                    index=index,
                    finish=finish,
                    usage=self._usage[prompt],
                ),
            )
            for prompt, index in sorted(self._open)
        ]
