"""What happens to requests when model replicas refuse, die, drain or fill up. Real Ray, fake engine."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from serve_app.channel.receiver import Receiver
from serve_app.config import ModelConfig
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.deployments.model.deployment import model_deployment
from serve_app.endpoints.endpoint import Endpoint
from serve_app.endpoints.rules import app_name
from serve_app.errors import (
    EngineRefused,
    InvalidField,
    Overloaded,
    Unavailable,
)
from serve_app.loopback import LOOPBACK
from serve_app.types import Adapter, EngineStats, GenerateRequest, Prompt, Tensor, TokenDelta
from tests.support.fake_server import FakeServer
from tests.support.ray_cluster import Cluster
from tests.support.replica_pair import is_alive
from tests.support.streams import lists

# One event loop for all: a Serve handle belongs to the loop that first used it.
pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

WAIT_S = 60.0
TOKENS = 1000
LONG = f"tokens={TOKENS} step=0.02"  # seconds longer than a machine with other work may stall


@pytest.fixture(scope="module")
def models(ray_cluster: Cluster) -> Iterator[None]:
    """`pair`: two replicas. `narrow`: one replica that takes one request and queues one."""
    from ray import serve

    pair = ModelConfig(name="pair")
    narrow = ModelConfig(name="narrow")
    options = {"graceful_shutdown_timeout_s": 20, "health_check_period_s": 1}
    deployments = (
        (pair, model_deployment(pair).options(num_replicas=2, **options)),
        (narrow, model_deployment(narrow).options(max_ongoing_requests=1, max_queued_requests=1, **options)),
    )
    for config, deployment in deployments:
        app = deployment.bind(config, FakeServer.start)
        serve.run(app, name=app_name(config.name), route_prefix=None)
    yield
    for config, _ in deployments:
        serve.delete(app_name(config.name))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def backend(models: None) -> AsyncIterator[ServeBackend]:
    """A gateway's backend in this process."""
    backend = ServeBackend(await Receiver.start(LOOPBACK), patience_s=WAIT_S)
    for name in ("pair", "narrow", "absent"):
        backend.watch(Endpoint(name=name))
        backend.serve(Endpoint(name=name))
    await until(lambda: all(backend.info(app_name(name)) for name in ("pair", "narrow")))
    yield backend
    await backend.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.02)


def request(text: str, *, model: str = "pair", n: int = 1) -> GenerateRequest:
    return GenerateRequest(
        id=f"t-{secrets.token_hex(8)}", model=app_name(model), prompt=Prompt(text=text), n=n
    )


async def collect(backend: ServeBackend, asked: GenerateRequest) -> list[TokenDelta]:
    async with asyncio.timeout(WAIT_S):
        return [delta async for deltas in lists(backend.generate(asked)) for delta in deltas]


async def patiently(backend: ServeBackend, asked: GenerateRequest) -> list[TokenDelta]:
    """As `collect`; where no replica is left, once one is back, and where a queue is full, once it is not."""
    async with asyncio.timeout(2 * WAIT_S):
        while True:
            try:
                return await collect(backend, asked)
            except Overloaded:
                await asyncio.sleep(0.05)
            except Unavailable:
                if not await backend.recovery([asked.model], WAIT_S):
                    raise


async def processes(backend: ServeBackend) -> set[int]:
    """Those of the replicas of `pair` that have answered."""
    answers = await asyncio.gather(*(patiently(backend, request("tokens=1 first=0.1")) for _ in range(20)))
    return {pid for deltas in answers for delta in deltas for pid in delta.token_ids}


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def rest(stream: AsyncIterator[list[TokenDelta]]) -> list[str]:
    """The texts of what is still to come."""
    return [delta.text async for deltas in stream for delta in deltas]


def aborted(backend: ServeBackend, model: str) -> int:
    return backend.stats()[app_name(model)].preemptions


def running(backend: ServeBackend, model: str) -> int:
    return backend.stats()[app_name(model)].running


async def test_all_deltas_of_every_choice_arrive_in_order(backend: ServeBackend) -> None:
    deltas = await collect(backend, request("tokens=20", n=2))
    for index in range(2):
        assert [d.text for d in deltas if d.index == index] == [f"{i} " for i in range(20)]
    assert deltas[-1].usage.completion_tokens == 40


async def test_many_requests_share_the_channel_without_mixing(backend: ServeBackend) -> None:
    asked = [request("tokens=30 step=0.001") for _ in range(64)]
    for one, deltas in zip(asked, await asyncio.gather(*(collect(backend, r) for r in asked)), strict=True):
        assert {d.request_id for d in deltas} == {one.id}
        assert [d.text for d in deltas] == [f"{i} " for i in range(30)]


async def test_the_requests_of_a_task_go_where_its_weights_went(backend: ServeBackend) -> None:
    weights = Tensor(dtype="FP32", shape=(1, 1), data=bytes(4))  # the fake engine does not look

    async def process_of(task: int, sent: Tensor | None = None) -> int:
        asked = replace(request("tokens=1"), adapter=Adapter(name=f"task:{task}", weights=sent))
        (delta,) = await collect(backend, asked)
        return delta.token_ids[0]

    async def stays(task: int, home: int) -> bool:
        return {await process_of(task) for _ in range(8)} == {home}

    homes: dict[int, int] = {}
    while len(homes) < 8 or (len(set(homes.values())) < 2 and len(homes) < 64):  # Serve picks by chance
        homes[len(homes)] = await process_of(len(homes), weights)
    for task, home in homes.items():
        async with asyncio.timeout(WAIT_S):  # until the gateway has heard where they went
            while not await stays(task, home):
                await asyncio.sleep(0.1)
    assert len(set(homes.values())) == 2
    for task, home in homes.items():
        assert await stays(task, home)


async def test_closing_the_stream_aborts_the_request_in_the_replica(backend: ServeBackend) -> None:
    stream = lists(backend.generate(request("tokens=10000 step=0.01")))
    await anext(stream)
    before = aborted(backend, "pair")
    await stream.aclose()
    await until(lambda: aborted(backend, "pair") > before)
    await until(lambda: running(backend, "pair") == 0)


async def test_a_refusal_of_the_replica_is_raised_as_it_was(backend: ServeBackend) -> None:
    with pytest.raises(InvalidField, match="refused"):
        await collect(backend, request("refuse=InvalidField"))


async def test_models_that_are_not_there_are_told_apart(backend: ServeBackend) -> None:
    with pytest.raises(Unavailable):
        await collect(backend, request("", model="absent"))
    with pytest.raises(Unavailable):
        await collect(backend, request("", model="never-heard-of"))


async def test_a_full_queue_refuses_at_once(backend: ServeBackend) -> None:
    asked = [request("tokens=50 step=0.02", model="narrow") for _ in range(8)]
    results = await asyncio.gather(*(collect(backend, r) for r in asked), return_exceptions=True)
    refused = [r for r in results if isinstance(r, Overloaded)]
    answered = [r for r in results if isinstance(r, list)]
    assert len(refused) + len(answered) == 8
    assert answered
    assert refused
    assert all(error.retry_after_s for error in refused)


async def test_a_killed_replica_loses_nothing(backend: ServeBackend, tmp_path: Path) -> None:
    after = tmp_path / "killed"
    begun = [request(f"{LONG} hurry={after}") for _ in range(8)]
    streams = [lists(backend.generate(r)) for r in begun]
    firsts = [await anext(stream) for stream in streams]
    waiting = [asyncio.ensure_future(collect(backend, request(f"until={after} tokens=5"))) for _ in range(8)]
    await until(lambda: running(backend, "pair") >= 16)
    victim = firsts[0][0].token_ids[0]

    def replicas() -> list[EngineStats]:
        return list(backend.replicas()[app_name("pair")].values())

    (lost,) = [each.generated_tokens for each in replicas() if each.steps == victim]  # its process
    os.kill(victim, signal.SIGKILL)
    after.touch()
    for first, answer in zip(
        firsts, await asyncio.wait_for(asyncio.gather(*map(rest, streams)), WAIT_S), strict=True
    ):
        assert [delta.text for delta in first] + answer == [f"{i} " for i in range(TOKENS)]
    for deltas in await asyncio.gather(*waiting):
        assert [d.text for d in deltas] == [f"{i} " for i in range(5)]
        assert deltas[0].token_ids[0] != victim
    await until(lambda: all(each.steps != victim for each in replicas()))
    here = sum(each.generated_tokens for each in replicas())
    assert backend.stats()[app_name("pair")].generated_tokens >= here + lost > here


async def test_a_request_that_kills_replicas_is_refused_in_the_end(backend: ServeBackend) -> None:
    with pytest.raises(EngineRefused):
        await patiently(backend, request("die=1"))
    with pytest.raises(EngineRefused):
        await patiently(backend, request("die=1"))  # a retry has a new id
    assert await patiently(backend, request("tokens=3"))


async def test_what_waits_for_a_model_that_is_gone_is_let_go_before_it_is_back(
    backend: ServeBackend, tmp_path: Path
) -> None:
    app, after = app_name("narrow"), tmp_path / "killed"
    await until(lambda: backend.is_ready(app))
    stream = lists(backend.generate(request(f"{LONG} hurry={after}", model="narrow")))
    first = await anext(stream)
    waiting = asyncio.ensure_future(collect(backend, request("tokens=5", model="narrow")))
    await until(lambda: app in backend.routes() and backend._models[app, "narrow", ""].is_waited_for)
    os.kill(first[0].token_ids[0], signal.SIGKILL)
    after.touch()
    going_on = asyncio.ensure_future(rest(stream))
    with pytest.raises(Unavailable):
        await waiting
    assert backend.missing(app) == "restarting"
    with pytest.raises(Unavailable) as refused:
        await backend.model(app)
    assert refused.value.retry_after_s
    assert not await backend.recovery([app], 0.0)
    assert not await backend.recovery([app, app_name("pair")], WAIT_S)  # that one need not be waited for
    assert not await backend.recovery([app_name("absent")], WAIT_S)  # has never answered
    assert await backend.recovery([app], WAIT_S)
    texts = [delta.text for delta in first] + await asyncio.wait_for(going_on, WAIT_S)
    assert texts == [f"{i} " for i in range(TOKENS)]
    # The queue has one place, which a look at the model may have for a moment.
    assert len(await patiently(backend, request("tokens=5", model="narrow"))) == 5


async def test_a_model_that_no_endpoint_names_any_more_still_answers_who_knows_of_it(models: None) -> None:
    backend = ServeBackend(await Receiver.start(LOOPBACK))
    pair, narrow = Endpoint(name="pair"), Endpoint(name="narrow")
    backend.watch(narrow)
    backend.serve(narrow)
    backend.watch(pair)
    await backend.looked(WAIT_S)
    await until(lambda: all(map(backend.answers, (*pair.served_entities, *narrow.served_entities))))
    assert backend.routes() == [app_name("narrow")]
    assert not backend.is_ready(app_name("pair"))  # known, but nobody is sent there yet
    backend.serve(pair)
    backend.unwatch(narrow)
    assert backend.routes() == [app_name("pair")]
    assert len(await patiently(backend, request("tokens=5", model="narrow"))) == 5
    assert backend.stats().keys() == {app_name("pair")}
    await backend.close()


@pytest.mark.full
async def test_a_replica_whose_engine_hangs_is_replaced_and_its_request_refused_in_the_end(
    backend: ServeBackend,
) -> None:
    """It hangs one replica after another, so it is moved and then given up; others go on."""
    hanging = asyncio.ensure_future(collect(backend, request("sick=1")))
    neighbours = [await patiently(backend, request("tokens=5")) for _ in range(5)]
    assert all(len(deltas) == 5 for deltas in neighbours)
    with pytest.raises((EngineRefused, Unavailable)):
        await hanging
    assert len(await patiently(backend, request("tokens=5"))) == 5


async def test_a_replica_ends_with_its_engine_and_no_client_notices(
    backend: ServeBackend, tmp_path: Path
) -> None:
    """Its queue is empty meanwhile, but it attracts no request that could be answered elsewhere."""
    once = tmp_path / "once"
    once.touch()
    while len(before := await processes(backend)) < 2:
        pass
    asked = [request(f"tokens=5 dead={once}"), *(request("tokens=5") for _ in range(40))]
    answers = await asyncio.gather(*(collect(backend, each) for each in asked))
    assert all(len(deltas) == 5 for deltas in answers)
    (dead,) = {pid for pid in before if once.with_suffix(f".{pid}") in files(tmp_path)}
    assert {delta.token_ids for delta in answers[0]} == {(pid,) for pid in before - {dead}}
    await until(lambda: not is_alive(dead))


async def test_a_stopping_replica_finishes_what_it_has(backend: ServeBackend) -> None:
    from ray import serve

    drained = ModelConfig(name="drained")
    app = model_deployment(drained).options(graceful_shutdown_timeout_s=30).bind(drained, FakeServer.start)
    serve.run(app, name=app_name("drained"), route_prefix=None)
    other = ServeBackend(await Receiver.start("127.0.0.1"))
    other.watch(Endpoint(name="drained"))
    other.serve(Endpoint(name="drained"))
    await until(lambda: other.info(app_name("drained")))
    stream = lists(other.generate(request("tokens=150 step=0.02", model="drained")))
    texts = [delta.text for delta in await anext(stream)]
    await asyncio.to_thread(serve.delete, app_name("drained"), _blocking=False)
    async for deltas in stream:
        texts += [delta.text for delta in deltas]
    assert texts == [f"{i} " for i in range(150)]
    await other.close()
