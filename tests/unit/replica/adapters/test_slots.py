"""Adapters in a replica: loaded once, kept while held, dropped when idle; every answer is its own."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from serve_app.config import EngineConfig, ModelConfig
from serve_app.errors import InvalidField, ModelNotFound, Overloaded, UnsupportedField
from serve_app.models.errors import ModelLoadError
from serve_app.replica.adapters import slots as module
from serve_app.replica.server import ModelServer
from serve_app.types import Adapter, FinishReason, GenerateRequest, Prompt, SamplingParams
from tests.support.adapters import (
    Matrices,
    Shapes,
    continuation,
    int32,
    matrices,
    merged,
    original,
    shapes_of,
    task,
    tensors,
)
from tests.support.sink import Sink

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 8
PROMPT = (40, 300, 17, 88, 129)
LONG = tuple(range(100, 140))  # two full blocks
SLOTS = 3
_ids = itertools.count()


@pytest.fixture(scope="module")
def model(folder: Path) -> PreTrainedModel:
    return original(folder)


@pytest.fixture(scope="module")
def shapes(model: PreTrainedModel) -> Shapes:
    return shapes_of(model)


@pytest.fixture(scope="module")
def pirate(tmp_path_factory: pytest.TempPathFactory, shapes: Shapes) -> tuple[Path, Matrices]:
    """A folder in PEFT's layout whose scale is 2, and its matrices with the scale in them."""
    folder = tmp_path_factory.mktemp("pirate")
    parts = matrices(shapes, 99)
    saved = {}
    for (layer, name), (a, b) in parts.items():
        parent = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        path = f"base_model.model.model.layers.{layer}.{parent}.{name}"
        saved[f"{path}.lora_A.weight"], saved[f"{path}.lora_B.weight"] = a, b / 2
    save_file(saved, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    return folder, parts


@asynccontextmanager
async def running(
    folder: Path, *, engine: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[ModelServer]:
    limits = {
        "max_adapters": SLOTS,
        "max_adapter_rank": 8,
        "max_model_len": 256,
        "num_blocks": 128,
        "block_size": 16,
    }
    config = ModelConfig(
        name="tiny",
        source=str(folder),
        dtype="float32",
        threads=1,
        engine=EngineConfig(**limits | (engine or {})),
        **settings,
    )
    server = await ModelServer.start(config, lambda _: None)
    try:
        yield server
        stats = server.stats()
        assert stats.running == 0
        assert stats.waiting == 0
        assert stats.blocks_used == 0
        inside(server).check_integrity()
    finally:
        await server.stop()


def inside(server: ModelServer) -> Any:
    """The engine of a server."""
    return server._driver._engine  # type: ignore[attr-defined]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folder: Path, pirate: tuple[Path, Matrices]) -> AsyncIterator[ModelServer]:
    async with running(folder, adapters={"pirate": str(pirate[0])}) as server:
        yield server


def asking(adapter: Adapter | None, **changes: Any) -> GenerateRequest:
    request = GenerateRequest(
        id=f"r{next(_ids)}",
        model="tiny",
        prompt=Prompt(token_ids=PROMPT),
        sampling=SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True),
        adapter=adapter,
    )
    return replace(request, **changes)


async def answer(server: ModelServer, adapter: Adapter | None = None, **changes: Any) -> list[int]:
    """The tokens of one request. Raises ServeError."""
    sink = Sink()
    await server.generate(asking(adapter, **changes), sink)
    assert sink.deltas[-1].finish is FinishReason.LENGTH
    return [token for delta in sink.deltas for token in delta.token_ids]


# --- answers -----------------------------------------------------------------------------


async def test_a_task_is_sent_once_and_named_from_then_on(
    server: ModelServer, model: PreTrainedModel, shapes: Shapes
) -> None:
    parts = matrices(shapes, 1)
    want = continuation(merged(model, parts), PROMPT, TOKENS)
    assert want != continuation(model, PROMPT, TOKENS) == await answer(server)
    assert await answer(server, task(1, parts, padding=3)) == want
    assert await answer(server, task(1)) == want
    # Weights that come again are accepted and ignored, whatever they are.
    assert await answer(server, task(1, matrices(shapes, 2))) == want


async def test_a_folder_is_named(
    server: ModelServer, model: PreTrainedModel, pirate: tuple[Path, Matrices]
) -> None:
    assert server.info.adapters == ("pirate",)
    assert await answer(server, Adapter(name="pirate")) == continuation(
        merged(model, pirate[1]), PROMPT, TOKENS
    )


@pytest.mark.parametrize("dtype", ["FP16", "BF16"])
async def test_weights_come_in_half_precision_too(
    server: ModelServer, model: PreTrainedModel, shapes: Shapes, dtype: str
) -> None:
    kind = {"FP16": torch.float16, "BF16": torch.bfloat16}[dtype]
    parts = {place: (a.to(kind).float(), b.to(kind).float()) for place, (a, b) in matrices(shapes, 3).items()}
    want = continuation(merged(model, parts), PROMPT, TOKENS)
    assert await answer(server, task(30 + len(dtype), parts, dtype)) == want


async def test_rows_of_different_adapters_are_answered_together(
    server: ModelServer, model: PreTrainedModel, shapes: Shapes
) -> None:
    parts = {number: matrices(shapes, number, rank=2 + number % 3) for number in (5, 6)}
    wanted = {number: continuation(merged(model, each), PROMPT, TOKENS) for number, each in parts.items()}
    plain = continuation(model, PROMPT, TOKENS)
    asked = [task(number, parts[number]) for number in (5, 6) for _ in range(3)]
    answers = await asyncio.gather(*(answer(server, each) for each in [*asked, None, None, None]))
    assert answers == [wanted[5]] * 3 + [wanted[6]] * 3 + [plain] * 3


async def test_a_prefix_is_cached_for_one_adapter_of_one_tenant(
    folder: Path, model: PreTrainedModel, shapes: Shapes
) -> None:
    async with running(folder) as server:
        prompt = Prompt(token_ids=LONG)
        ours, theirs = matrices(shapes, 11), matrices(shapes, 12)
        for _ in range(2):
            for adapter, salt, parts in (
                (None, "", None),
                (task(7, ours), "us", ours),
                (task(7, theirs), "them", theirs),  # the same id of another tenant
            ):
                want = continuation(model if parts is None else merged(model, parts), LONG, TOKENS)
                assert await answer(server, adapter, prompt=prompt, salt=salt) == want
        assert server.stats().cached_tokens == 3 * 32  # in the second round, each its own


async def test_an_id_that_gets_new_weights_finds_no_old_prefix(
    folder: Path, model: PreTrainedModel, shapes: Shapes
) -> None:
    async with running(folder, engine={"max_adapters": 1}) as server:
        prompt = Prompt(token_ids=LONG)
        for seed in (21, 22):
            parts = matrices(shapes, seed)
            want = continuation(merged(model, parts), LONG, TOKENS)
            assert await answer(server, task(1, parts), prompt=prompt) == want
            assert (
                await answer(server, task(2, matrices(shapes, 23)), prompt=prompt) != want
            )  # takes the slot


# --- refusals ----------------------------------------------------------------------------


async def test_an_id_that_is_not_cached_asks_for_its_weights(server: ModelServer) -> None:
    with pytest.raises(InvalidField, match="lora_task_id: task 4711 is not in the cache; send lora_weights"):
        await answer(server, task(4711))


async def test_a_task_is_its_tenants_own(server: ModelServer, shapes: Shapes) -> None:
    await answer(server, task(50, matrices(shapes, 50)), salt="a")
    with pytest.raises(InvalidField, match="task 50 is not in the cache"):
        await answer(server, task(50), salt="b")


@pytest.mark.parametrize(("gone", "named"), [("config", "lora_config"), ("weights", "lora_weights")])
async def test_weights_and_config_come_together(
    server: ModelServer, shapes: Shapes, gone: str, named: str
) -> None:
    whole = task(60, matrices(shapes, 1))
    with pytest.raises(InvalidField, match=named) as caught:
        await answer(server, replace(whole, **{gone: None}))
    assert caught.value.param == named


async def test_a_name_that_nobody_gave_is_not_found(server: ModelServer) -> None:
    with pytest.raises(ModelNotFound):
        await answer(server, Adapter(name="nobody"))


async def test_hostile_weights_leave_no_trace(
    server: ModelServer, model: PreTrainedModel, shapes: Shapes
) -> None:
    good = matrices(shapes, 70)
    config, weights = tensors(good)
    nan = {place: (a.clone().fill_(torch.nan), b) for place, (a, b) in good.items()}
    for bad in (
        task(70, nan),
        task(70, {place: (a * torch.inf, b) for place, (a, b) in good.items()}),
        Adapter(name="task:70", config=int32([(1, 0, 2**31 - 1)]), weights=weights),
        Adapter(name="task:70", config=config, weights=replace(weights, data=weights.data[:-4])),
        Adapter(name="task:70", config=replace(config, shape=(2**40, 3)), weights=weights),
        Adapter(name="task:70", config=config, weights=replace(weights, dtype="INT64")),
    ):
        with pytest.raises(InvalidField, match=r"lora_(config|weights): "):
            await answer(server, bad)
        with pytest.raises(InvalidField, match="task 70 is not in the cache"):
            await answer(server, task(70))
    assert await answer(server) == continuation(model, PROMPT, TOKENS)
    assert await answer(server, task(70, good)) == continuation(merged(model, good), PROMPT, TOKENS)


async def test_others_go_on_when_the_weights_they_wait_for_are_wrong(
    server: ModelServer, model: PreTrainedModel, shapes: Shapes
) -> None:
    good = matrices(shapes, 80)
    bad = {place: (a * torch.nan, b) for place, (a, b) in good.items()}
    found = await asyncio.gather(
        answer(server, task(80, bad)),
        answer(server, task(80, good)),
        answer(server, task(80)),
        return_exceptions=True,
    )
    assert isinstance(found[0], InvalidField)
    assert found[1] == continuation(merged(model, good), PROMPT, TOKENS)
    assert isinstance(found[2], InvalidField) or found[2] == found[1]


async def test_a_model_without_slots_takes_no_adapters(folder: Path, shapes: Shapes) -> None:
    async with running(folder, engine={"max_adapters": 0}) as server:
        with pytest.raises(UnsupportedField, match="takes no adapters"):
            await answer(server, task(1, matrices(shapes, 1)))


async def test_a_folder_that_does_not_fit_stops_the_start(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_dora": true}'
    )
    with pytest.raises(ModelLoadError, match="use_dora"):
        async with running(folder, adapters={"bad": str(tmp_path)}):
            pass


# --- slots -------------------------------------------------------------------------------


async def test_when_requests_hold_all_slots_another_waits_and_then_is_told_to_retry(
    folder: Path, model: PreTrainedModel, shapes: Shapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOT_WAIT_S", 0.0)
    long = SamplingParams(temperature=0.0, max_tokens=240, ignore_eos=True)
    async with running(folder, engine={"max_adapters": 1}) as server:
        sink = Sink()
        holder = asyncio.ensure_future(
            server.generate(asking(task(1, matrices(shapes, 1)), sampling=long), sink)
        )
        await sink.began.wait()
        with pytest.raises(Overloaded, match="All 1 slots for adapters are in use") as caught:
            await answer(server, task(2, matrices(shapes, 2)))
        assert caught.value.retry_after_s
        monkeypatch.setattr(module, "SLOT_WAIT_S", 60.0)
        parts = matrices(shapes, 2)
        waiting = asyncio.ensure_future(answer(server, task(2, parts)))
        await holder
        assert await waiting == continuation(merged(model, parts), PROMPT, TOKENS)


async def test_the_least_recently_used_gives_way(folder: Path, shapes: Shapes) -> None:
    async with running(folder) as server:
        for number in range(SLOTS):
            await answer(server, task(number, matrices(shapes, number)))
        await answer(server, task(0))  # used again
        await answer(server, task(9, matrices(shapes, 9)))
        for number in (0, 2, 9):
            await answer(server, task(number))
        with pytest.raises(InvalidField, match="task 1 is not in the cache"):
            await answer(server, task(1))


async def test_a_request_that_leaves_while_its_adapter_loads_costs_nobody_a_slot(
    folder: Path, model: PreTrainedModel, shapes: Shapes
) -> None:
    async with running(folder, engine={"max_adapters": 1}) as server:
        for number in range(6):
            gone = asyncio.ensure_future(answer(server, task(number, matrices(shapes, number))))
            for _ in range(number):
                await asyncio.sleep(0)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        parts = matrices(shapes, 77)
        assert await answer(server, task(77, parts)) == continuation(merged(model, parts), PROMPT, TOKENS)
        assert len(inside(server).adapters) == 1


async def churn(
    server: ModelServer, model: PreTrainedModel, shapes: Shapes, tasks: int, clients: int
) -> None:
    """Clients that take tasks at random, send weights when asked for, and now and then hang up."""
    draw = random.Random(7)
    parts = {number: matrices(shapes, number, rank=1 + number % 8) for number in range(tasks)}
    wanted = {number: continuation(merged(model, each), PROMPT, TOKENS) for number, each in parts.items()}
    queue = [number for number in range(tasks) for _ in range(2)]
    draw.shuffle(queue)

    async def one(number: int) -> None:
        try:
            found = await answer(server, task(number))
        except InvalidField:
            found = await answer(server, task(number, parts[number]))
        assert found == wanted[number], number

    async def client() -> None:
        while queue:
            number = queue.pop()
            if draw.random() < 0.15:
                hangs_up = asyncio.ensure_future(one(number))
                await asyncio.sleep(draw.random() * 0.02)
                hangs_up.cancel()
                await asyncio.gather(hangs_up, return_exceptions=True)
            await one(number)

    await asyncio.gather(*(client() for _ in range(clients)))


async def test_tasks_come_and_go_over_few_slots(folder: Path, model: PreTrainedModel, shapes: Shapes) -> None:
    async with running(folder) as server:
        await churn(server, model, shapes, tasks=16, clients=6)
        table = inside(server).adapters
        assert len(table) == SLOTS
        assert table.num_bytes <= SLOTS * table.bytes_at(8)


@pytest.mark.full
async def test_two_hundred_tasks_over_eight_slots_leave_memory_flat(
    folder: Path, model: PreTrainedModel, shapes: Shapes
) -> None:
    async with running(folder, engine={"max_adapters": 8}) as server:
        await churn(server, model, shapes, tasks=40, clients=16)  # whatever grows once has grown
        before = psutil.Process().memory_info().rss
        await churn(server, model, shapes, tasks=200, clients=16)
        table = inside(server).adapters
        assert len(table) == 8
        assert table.num_bytes <= 8 * table.bytes_at(8)
        assert psutil.Process().memory_info().rss - before < 64 * 2**20
