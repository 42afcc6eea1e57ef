"""What a request has cost so far is told while nothing is delivered, and what was dropped at its end."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from serve_app.replica.output.request_state import PROGRESS_TOKENS
from serve_app.replica.server import ModelServer
from serve_app.types import Beam, GenerateRequest, Prompt, SamplingParams, TokenDelta, Usage
from tests.support.fakes_metering import ListJournal
from tests.support.gateway import COMPLETIONS, directory_of, fake_app, served
from tests.support.local_backend import LocalBackend
from tests.support.replica import model_server
from tests.support.sink import Sink
from tests.support.streams import streamed

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHUNK, WINDOW = 16, 256
_ids = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folder: Path) -> AsyncIterator[ModelServer]:
    engine = {"max_model_len": WINDOW, "num_blocks": 64, "max_sequences": 8, "max_step_tokens": CHUNK}
    async with model_server(engine, name="tiny", source=str(folder), attention="reference") as made:
        yield made


def asked(length: int, tokens: int, **fields: object) -> GenerateRequest:
    """Nothing of a prompt is in the cache."""
    number = next(_ids)
    base = GenerateRequest(
        id=f"p{number}",
        model="tiny",
        prompt=Prompt(token_ids=tuple((7 * number + i) % 90 + 5 for i in range(length))),
        sampling=SamplingParams(max_tokens=tokens, ignore_eos=True, seed=1),
        stream=False,
        progress=True,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


async def answered(server: ModelServer, request: GenerateRequest) -> tuple[list[Usage], list[TokenDelta]]:
    """(what was told on the way, what was delivered)"""
    sink = Sink()
    await server.generate(request, sink)
    progress = [delta for delta in sink.deltas if delta.is_progress]
    assert all(not (d.text or d.token_ids or d.finish) for d in progress)
    return [d.usage for d in progress], [d for d in sink.deltas if not d.is_progress]


async def test_a_prompt_is_told_chunk_by_chunk_as_it_is_computed(server: ModelServer) -> None:
    told, (last,) = await answered(server, asked(5 * CHUNK + 3, 2))
    assert [usage.prompt_tokens for usage in told[:5]] == [CHUNK * k for k in range(1, 6)]
    assert not any(usage.generated_tokens for usage in told[:5])
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5 * CHUNK + 3, 2)


async def test_an_answer_in_one_piece_tells_how_far_it_is(server: ModelServer) -> None:
    told, _ = await answered(server, asked(4, 4 * PROGRESS_TOKENS))
    made = [0, *(usage.completion_tokens for usage in told), 4 * PROGRESS_TOKENS]
    assert all(0 < later - earlier <= PROGRESS_TOKENS for earlier, later in itertools.pairwise(made))


async def test_who_does_not_ask_gets_no_progress_and_a_stream_needs_none(server: ModelServer) -> None:
    told, _ = await answered(server, asked(3 * CHUNK, 40, progress=False))
    assert not told
    told, deltas = await answered(server, asked(4, 40, stream=True))
    assert not told
    assert [delta.usage.completion_tokens for delta in deltas] == list(range(1, 41))


async def test_candidates_that_lost_are_discarded_and_not_used(server: ModelServer) -> None:
    told, deltas = await answered(server, asked(4, 20, n=2, best_of=8))
    assert [delta.usage for delta in deltas] == [
        Usage(prompt_tokens=4, completion_tokens=2 * 20, discarded_tokens=6 * 20)
    ] * 2
    assert told[-1].generated_tokens >= 8 * 20 - 8 - PROGRESS_TOKENS


async def test_beams_that_lost_are_discarded_and_not_used(server: ModelServer) -> None:
    told, (best,) = await answered(server, asked(4, 20, n=1, beam=Beam(width=4)))
    assert best.usage.completion_tokens == 20
    # One beam in the first step, four in each of the others that none of them ends in.
    assert best.usage.generated_tokens == 1 + 4 * 19
    assert told[-1].generated_tokens >= best.usage.generated_tokens - PROGRESS_TOKENS - 4


class Watched(LocalBackend):
    """Says what was told of the newest request."""

    told = Usage()

    @streamed
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:  # type: ignore[override]
        self.told = Usage()
        async for deltas in super().generate(request):
            self.told = deltas[-1].usage
            yield deltas


LIMITS = {"requests_per_minute": 10, "input_tokens_per_minute": 10_000, "output_tokens_per_minute": 10_000}


@pytest.mark.parametrize("enough", [2 * CHUNK, 6 * CHUNK + PROGRESS_TOKENS])  # in the prompt, in the output
async def test_hanging_up_costs_what_was_computed(server: ModelServer, enough: int) -> None:
    backend, journal = Watched(server), ListJournal()
    directory = directory_of(backend, [{"name": "tiny", "limits": LIMITS}])  # type: ignore[arg-type]
    app = fake_app(backend, "", directory, journal)  # type: ignore[arg-type]
    request = asked(6 * CHUNK, 150)
    fields = {"model": "tiny", "prompt": request.prompt.token_ids, "max_tokens": 150, "ignore_eos": True}
    body = json.dumps(fields).encode()
    async with served(app) as (host, port):
        _reader, writer = await asyncio.open_connection(host, port)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        async with asyncio.timeout(60):
            while backend.told.prompt_tokens + backend.told.generated_tokens < enough:
                await asyncio.sleep(0)
            writer.close()
            while journal.open:
                await asyncio.sleep(0.005)
    (record,) = journal.records
    assert (record.outcome, record.status) == ("aborted", 0)
    used = record.prompt_tokens + record.completion_tokens
    assert enough <= used < 6 * CHUNK + 150
    assert used <= backend.told.prompt_tokens + backend.told.generated_tokens + PROGRESS_TOKENS
    buckets = app.state.services.meter._quota.buckets._buckets
    left = {name.rpartition("|")[2]: bucket.level for name, bucket in buckets.items()}
    assert left == {
        "requests": 9,
        "input-tokens": 10_000 - record.prompt_tokens,
        "output-tokens": 10_000 - record.completion_tokens,
    }
