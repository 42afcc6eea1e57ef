"""A replica that is asked to go on with an answer: what it refuses, and what it leaves behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from serve_app.errors import DeadlineExceeded, EngineRefused, Unavailable
from serve_app.replica.server import ModelServer
from serve_app.types import ChoiceSoFar, GenerateRequest, Resume, SamplingParams
from tests.support.sink import Sink
from tests.unit.replica.test_server import GREEDY, request, run, server, shared, wait_until

__all__ = ["server", "shared"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = replace(GREEDY, max_tokens=150)


async def moved(
    server: ModelServer, sampling: SamplingParams = LONG, count: int = 20, **fields: object
) -> GenerateRequest:
    """A request whose client has the first `count` tokens."""
    first = await run(server, request(sampling=replace(sampling, max_tokens=count)))
    told = first.deltas[-1].usage
    resume = Resume(
        weights=server.info.weights,
        choices=(ChoiceSoFar(token_ids=tuple(first.ids()), timing=first.deltas[0].timing),),
        usage=told,
        age_s=1.0,
    )
    return request(sampling=sampling, resume=resume, **fields)


async def test_a_replica_knows_its_weights(server: ModelServer) -> None:
    assert len(server.info.weights) == 32


async def test_other_weights_are_refused_before_anything_is_done(server: ModelServer) -> None:
    wanted = await moved(server)
    assert wanted.resume is not None
    sink = Sink()
    with pytest.raises(Unavailable, match="another version"):
        await server.generate(replace(wanted, resume=replace(wanted.resume, weights="other")), sink)
    assert sink.deltas == []


async def test_where_nothing_is_left_nothing_is_sent(server: ModelServer) -> None:
    wanted = await moved(server)
    assert wanted.resume is not None
    ended = replace(wanted.resume, choices=(replace(wanted.resume.choices[0], finished=True),))
    assert (await run(server, replace(wanted, resume=ended))).deltas == []


async def test_another_number_of_choices_is_refused(server: ModelServer) -> None:
    wanted = await moved(server)
    with pytest.raises(EngineRefused, match="cannot go on"):
        await run(server, replace(wanted, n=2))


async def test_usage_goes_on(server: ModelServer) -> None:
    whole = await run(server, request(sampling=LONG))
    rest = await run(server, await moved(server))
    assert rest.ids() == whole.ids()[20:]
    assert [d.usage.completion_tokens for d in rest.deltas] == list(range(21, 151))
    assert rest.deltas[-1].usage.prompt_tokens == whole.deltas[-1].usage.prompt_tokens
    assert all(d.usage.cached_tokens == rest.deltas[0].usage.cached_tokens for d in rest.deltas)


async def test_a_call_that_is_cancelled_gives_its_blocks_back(server: ModelServer) -> None:
    wanted, sink = await moved(server), Sink()
    call = asyncio.ensure_future(server.generate(wanted, sink))
    await asyncio.wait_for(sink.began.wait(), 60)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await wait_until(lambda: server.stats().blocks_used == 0)
    assert sink.finish() is None


async def test_the_deadline_of_what_is_left_is_kept(server: ModelServer) -> None:
    with pytest.raises(DeadlineExceeded):
        await run(server, await moved(server, timeout_s=1e-9))
