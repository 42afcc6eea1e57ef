"""Gets all answers of a batch from a server: a few at a time, with retries while it is busy."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httpx

from serve_app.cli.batch.lines import Answers, Line
from serve_app.cli.server import OPENAI, PASSING, Server, ServerError, refusal

FIRST_PAUSE_S: Final = 0.5
LAST_PAUSE_S: Final = 30.0
LEAST_PAUSE_S: Final = 0.05  # even if the server asks for less
_JSON: Final = {"Content-Type": "application/json"}
# The paths in OpenAI's batches; other protocols may share a path.
_OF_OPENAI: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
_NOBODY_MAY: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


@dataclass(slots=True)
class Progress:
    """The progress of a batch in this run."""

    answered: int = 0  # refusals included
    refused: int = 0
    tokens: int = 0  # of outputs, from answers with a usage


class Batch:
    """One run of a batch."""

    def __init__(self, server: Server, answers: Answers, progress: Progress, patience_s: float) -> None:
        """`patience_s`: after this time without any answer, the run fails."""
        self._server = server
        self._answers = answers
        self._progress = progress
        self._patience_s = patience_s
        self._last = 0.0  # when the server last answered, or the run began; the event loop's time

    async def run(self, lines: Iterator[Line], at_once: int) -> None:
        """Send all lines that have no answer yet, `at_once` of them at a time.

        Raises LineError, OSError, and ServerError for a server that is away or a key without permission.
        """
        self._last = asyncio.get_running_loop().time()
        async with self._server.many(at_once) as client:
            workers = [asyncio.create_task(self._work(client, lines)) for _ in range(at_once)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, client: httpx.AsyncClient, lines: Iterator[Line]) -> None:
        for line in lines:  # shared by all workers: each takes the next line
            if line.custom_id in self._answers.done:
                continue
            response = await self._answer(client, line)
            if response.status_code in _NOBODY_MAY:
                raise refusal(response)
            body, progress = _body(response), self._progress
            self._answers.add(
                line.custom_id, response.status_code, response.headers.get("x-request-id", ""), body
            )
            progress.answered += 1
            progress.refused += not response.is_success
            progress.tokens += _tokens(body)

    async def _answer(self, client: httpx.AsyncClient, line: Line) -> httpx.Response:
        """The first answer that is not a temporary refusal. Raises ServerError."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_S
        while True:
            response = await _ask(client, line)
            if response is not None and response.status_code not in PASSING:
                self._last = loop.time()
                return response
            wait = _wait(response, pause)
            if loop.time() + wait > self._last + self._patience_s:
                if response is not None:
                    raise refusal(response)
                raise ServerError(f"{self._server.url} does not answer any more")
            await asyncio.sleep(wait)
            pause = min(2 * pause, LAST_PAUSE_S)


async def _ask(client: httpx.AsyncClient, line: Line) -> httpx.Response | None:
    """None if the server cannot be reached or the connection broke."""
    headers = _JSON | (OPENAI if line.url in _OF_OPENAI else {})
    content = json.dumps(line.body).encode()  # escapes invalid text, and leaves it to the server
    try:
        return await client.post(line.url, content=content, headers=headers)
    except httpx.TransportError:
        return None


def _wait(response: httpx.Response | None, pause: float) -> float:
    """Wait as long as the server asks, or a default time; with jitter, so that retries do not coincide."""
    retry_after = "" if response is None else response.headers.get("retry-after", "")
    return random.uniform(1.0, 1.5) * max(
        LEAST_PAUSE_S, float(retry_after) if retry_after.isdigit() else pause
    )


def _body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text


def _tokens(body: Any) -> int:
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return 0
    count = usage.get("completion_tokens", usage.get("output_tokens", 0))
    return count if isinstance(count, int) else 0
