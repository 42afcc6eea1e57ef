"""The measuring of a replica, on the demo model."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from serve_app.config import EngineConfig, ModelConfig
from serve_app.errors import Overloaded
from serve_app.replica.server import ModelServer
from serve_app.replica.throughput import Mix, Round, Throughput, measure

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIX = Mix(input_tokens=24, output_tokens=9, concurrency=3)


async def start(**engine: int) -> ModelServer:
    config = ModelConfig(
        name="demo-chat",
        dtype="float32",
        threads=1,
        engine=EngineConfig(max_model_len=128, block_size=16, **engine),
    )
    return await ModelServer.start(config, lambda line: None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ModelServer]:
    started = await start(max_sequences=3, num_blocks=32)
    yield started
    await started.stop()


async def idle(server: ModelServer) -> None:
    async with asyncio.timeout(60):
        while server.stats().running or server.stats().waiting or server.stats().blocks_used:
            await asyncio.sleep(0.01)


async def test_rounds_count_what_was_delivered(server: ModelServer) -> None:
    before = server.stats()
    lines: list[str] = []
    result = await measure(server, MIX, rounds=2, seconds=0.5, progress=lines.append)
    after = server.stats()
    assert len(result.rounds) == 2
    assert [line.partition(":")[0] for line in lines[1:]] == ["round 1 of 2", "round 2 of 2"]
    for each in result.rounds:
        assert each.seconds >= 0.5
        assert each.output_tokens > 0
        assert each.input_tokens % MIX.input_tokens == 0  # a prompt is there as a whole
        assert each.tokens_per_s == pytest.approx((each.input_tokens + each.output_tokens) / each.seconds)
    delivered = sum(each.output_tokens for each in result.rounds)
    # Beside the rounds there is the warm-up: 3, 6 and 9 tokens at least.
    assert 0 < delivered <= after.generated_tokens - before.generated_tokens - 18
    prompts = sum(each.input_tokens for each in result.rounds)
    assert 0 < prompts <= after.prompt_tokens - before.prompt_tokens
    # In service the mix is as stated, but for what is open when a round begins and ends.
    open_tokens = MIX.concurrency * (MIX.input_tokens + MIX.output_tokens)
    assert (
        abs(delivered * MIX.input_tokens - prompts * MIX.output_tokens) <= 2 * open_tokens * MIX.input_tokens
    )


async def test_prompts_share_no_prefix_and_nothing_runs_on_afterwards(server: ModelServer) -> None:
    cached = server.stats().cached_tokens
    await measure(server, MIX, rounds=1, seconds=0.2)
    assert server.stats().cached_tokens == cached
    await idle(server)


@pytest.mark.full
async def test_a_cache_that_is_too_small_for_all_shows() -> None:
    server = await start(max_sequences=4, num_blocks=9)
    try:
        mix = Mix(input_tokens=30, output_tokens=60, concurrency=4)  # 6 blocks each in the end
        result = await measure(server, mix, rounds=1, seconds=1.0)
        assert result.preemptions > 0
    finally:
        await server.stop()


async def test_a_request_that_fails_ends_the_measurement() -> None:
    server = await start(max_sequences=1, num_blocks=32, max_waiting=0)
    try:
        with pytest.raises(Overloaded):
            await measure(server, Mix(input_tokens=8, output_tokens=50, concurrency=8), seconds=60)
        await idle(server)
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("mix", "name"),
    [
        (Mix(input_tokens=120, output_tokens=9, concurrency=1), "context window of 128"),
        (Mix(input_tokens=0, concurrency=1), "input_tokens"),
        (Mix(output_tokens=0, concurrency=1), "output_tokens"),
        (Mix(concurrency=0), "concurrency"),
    ],
)
async def test_a_mix_that_cannot_be_served_is_named(server: ModelServer, mix: Mix, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        await measure(server, mix)


@pytest.mark.parametrize(("rounds", "seconds"), [(0, 1.0), (1, 0.0), (1, -1.0), (1, float("inf"))])
async def test_at_least_one_round_of_some_length(server: ModelServer, rounds: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="rounds"):
        await measure(server, MIX, rounds=rounds, seconds=seconds)


async def test_the_figure_is_the_median_round() -> None:
    rounds = tuple(Round(seconds=2.0, input_tokens=20 * k, output_tokens=10 * k) for k in (3, 1, 2))
    result = Throughput(mix=MIX, rounds=rounds, preemptions=0)
    assert (result.tokens_per_s, result.output_per_s, result.spread) == (30.0, 10.0, 1.0)
    still = Throughput(mix=MIX, rounds=(Round(seconds=1.0, input_tokens=0, output_tokens=0),), preemptions=0)
    assert (still.tokens_per_s, still.spread) == (0.0, 0.0)
