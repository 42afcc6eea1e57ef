"""Steps by graphs give what steps without give: on a device, else with the steps run in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from unittest.mock import Mock

import pytest
import torch

from serve_app.config import EngineConfig
from serve_app.engine.attention.triton import backend as triton_backend
from serve_app.engine.attention.triton import plan as triton_plan
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.cuda import graphs
from serve_app.engine.cuda.adapters.slots import StackedTable
from serve_app.engine.cuda.capture import CudaGraphs, Step
from serve_app.engine.cuda.fused import accelerate_cuda
from serve_app.engine.cuda.graphs import BUCKETS, GraphedSteps, buckets, graph_steps
from serve_app.engine.cuda.step_buffers import StepBuffers
from serve_app.engine.model.adapter_table import MakeAdapters
from serve_app.engine.model.packed_adapters import PackedTable
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk, Sequence
from tests.support.low_rank import random_updates
from tests.support.tiny_models import BLOCK, make_model, make_sequence, tiny_config
from tests.support.triton_interpreter import LONG, long

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ON_DEVICE = DEVICE.type == "cuda"
LAYERS, SEQUENCES, BLOCKS_EACH = 1, 3, 6
ADAPTERS = "one", "two"


@pytest.fixture(autouse=True, scope="module")
def short_parts() -> Iterator[None]:
    """Sequences of a few tokens have several parts."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (triton_backend, triton_plan):
            patch.setattr(module, "PART", 8)
        yield


class Recorder:
    """Counts what is replayed. Without a device the steps themselves run, on the same inputs; see
    `test_own_layers.py` for tapes of what they run."""

    def __init__(self) -> None:
        self.replayed = 0
        self._record: Callable[[Step], Step] = CudaGraphs() if ON_DEVICE else lambda step: step

    def __call__(self, step: Step) -> Step:
        replay = self._record(step)

        def counted() -> torch.Tensor:
            self.replayed += 1
            return replay()

        return counted


def runner(
    architecture: str = "mistral", make_adapters: MakeAdapters = StackedTable
) -> tuple[ModelRunner, TritonAttention]:
    """A model of one layer, with a window and two adapters: the interpreter is slow."""
    shape = {"num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = make_model(tiny_config(architecture, **shape)).to(DEVICE)
    accelerate_cuda(model, torch.float32)
    backend = TritonAttention()
    config = EngineConfig(
        block_size=BLOCK,
        num_blocks=SEQUENCES * BLOCKS_EACH,
        max_model_len=24,
        max_adapters=2,
        max_adapter_rank=4,
    )
    made = ModelRunner(
        model,
        backend=backend,
        dtype=torch.float32,
        device=DEVICE,
        config=config,
        make_adapters=make_adapters,
    )
    for seed, key in enumerate(ADAPTERS):
        put_adapter(made, key, seed)
    return made, backend


def put_adapter(runner: ModelRunner, key: str, seed: int) -> None:
    table = runner.adapters
    assert table is not None
    table.put(key, table.compile(random_updates(table.shapes, seed, 4)))


def sequences() -> list[Sequence]:
    order = torch.randperm(SEQUENCES * BLOCKS_EACH, generator=torch.Generator().manual_seed(3)).tolist()
    ids = torch.randint(3, 96, (SEQUENCES, 24), generator=torch.Generator().manual_seed(4)).tolist()
    return [
        make_sequence(str(i), ids[i], order[i * BLOCKS_EACH : (i + 1) * BLOCKS_EACH])
        for i in range(SEQUENCES)
    ]


def steps() -> list[list[Chunk]]:
    """Prompts, decodes of three, two and one sequence, a prompt beside a decode, and decodes again."""
    a, b, c = sequences()
    return [
        [Chunk(a, 0, 14, 14), Chunk(b, 0, 9, 9)],
        [Chunk(a, 14, 1, 14), Chunk(b, 9, 1, 9), Chunk(c, 0, 1, 0)],
        [Chunk(c, 1, 1, 1), Chunk(a, 15, 1, 15), Chunk(b, 10, 1, 10)],
        [Chunk(b, 11, 1, 11), Chunk(c, 2, 1, 2)],
        [Chunk(a, 16, 1, 16)],
        [Chunk(a, 17, 1, 17), Chunk(c, 3, 4, 3)],
        [Chunk(a, 18, 1, 18), Chunk(b, 12, 1, 12), Chunk(c, 7, 1, 7)],
        [Chunk(a, 19, 1, 20), Chunk(b, 13, 1, 13)],  # the first wants no logits
    ]


def logits(runner: ModelRunner, chosen: list[list[Chunk]]) -> list[torch.Tensor]:
    return [runner.run(build_batch(chunks, BLOCK, DEVICE)) for chunks in chosen]


@pytest.fixture(scope="module")
def want(short_parts: None) -> list[torch.Tensor]:
    """The logits of the steps without graphs."""
    plain, _ = runner()
    return logits(plain, steps())


def test_graphs_filled_up_with_null_sequences_give_the_logits_of_steps_without(
    want: list[torch.Tensor],
) -> None:
    graphed, backend = runner()
    recorder, said = Recorder(), list[str]()
    assert graph_steps(graphed.module, backend, graphed.plan, 4, said.append, recorder)
    assert len(said) == 4  # of 4, 2 and 1 sequences, and of all
    pools = [pool.rows.clone() for layer in range(LAYERS) for pool in backend.pools(layer)]
    got = logits(graphed, steps())
    assert recorder.replayed == 6
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert all(not pool.any() for pool in pools)  # recording, and its null sequences, wrote nothing


@long
def test_steps_with_prompts_have_graphs_too(want: list[torch.Tensor]) -> None:
    graphed, backend = runner()
    recorder, said = Recorder(), list[str]()
    assert graph_steps(graphed.module, backend, graphed.plan, 4, said.append, recorder, tokens=40)
    assert said[0] == "recorded the step of 32 tokens (1 of 1)"
    pools = [pool.rows.clone() for layer in range(LAYERS) for pool in backend.pools(layer)]
    for _ in range(2):  # the second time over what the first one left
        got = logits(graphed, steps())
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert recorder.replayed == 2 * len(want)
    assert all(not pool.any() for pool in pools)


def test_of_steps_with_prompts_those_have_graphs_that_gain_by_it() -> None:
    graphed, backend = runner()
    recorder = Recorder()
    made = GraphedSteps(graphed.module.forward.decode, backend, buffers_for(graphed), graphed.plan)
    asked: list[int] = []

    def gains(step: Step) -> bool:
        found = step()
        assert found.isfinite().all()  # no sequence is longer than one may be
        asked.append(len(found))
        return asked[-1] < 64

    made.record_rows((32, 64, 128), recorder, gains, lambda _: None)
    assert asked == [32, 64]
    assert made.count == 1


def buffers_for(runner: ModelRunner) -> StepBuffers:
    hidden = runner.module.config.get_text_config().hidden_size
    return StepBuffers(128, 4, hidden, runner.plan, DEVICE)


@long
def test_steps_with_more_prompts_than_a_graph_has_room_for_run_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "PROMPTS", 1)
    graphed, backend = runner()
    recorder = Recorder()
    assert graph_steps(graphed.module, backend, graphed.plan, 4, lambda _: None, recorder, tokens=32)
    a, b, c = sequences()
    logits(graphed, [[Chunk(a, 0, 14, 14), Chunk(b, 0, 9, 9)]])
    assert recorder.replayed == 0
    logits(graphed, [[Chunk(a, 14, 1, 14), Chunk(c, 0, 5, 4)]])
    assert recorder.replayed == 1


def with_adapters(chosen: list[list[Chunk]], keys: dict[str, str]) -> list[list[Chunk]]:
    """The same steps, with the adapters of some sequences."""
    for chunk in chain.from_iterable(chosen):
        chunk.sequence.adapter = keys.get(chunk.sequence.request_id)
    return chosen


@pytest.mark.parametrize(
    ("tokens", "replayed"),
    [
        pytest.param(0, 6, id="decodes", marks=LONG),
        pytest.param(40, 8, id="also prompts", marks=LONG),
    ],
)
def test_rows_with_adapters_have_graphs_of_their_own(tokens: int, replayed: int) -> None:
    """Which serve any rows and any adapters, also one that is loaded after they were recorded."""
    keys: list[dict[str, str]] = [{"0": "one", "1": "two", "2": "one"}, {"1": "one"}, {"2": "three"}]
    plain, _ = runner(make_adapters=PackedTable)
    graphed, backend = runner()
    recorder = Recorder()
    arguments = graphed.module, backend, graphed.plan, 4, lambda _: None, recorder, graphed.adapters
    assert graph_steps(*arguments, tokens=tokens)
    for number, chosen in enumerate(keys):
        if "three" in chosen.values():
            for each in (plain, graphed):
                assert each.adapters is not None
                each.adapters.drop("two")
                put_adapter(each, "three", 5)
        want, got = (logits(each, with_adapters(steps(), chosen)) for each in (plain, graphed))
        assert recorder.replayed == replayed * (number + 1)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    without = logits(plain, steps())
    assert any(not torch.allclose(one, two, atol=0.1) for one, two in zip(without, want, strict=True))


@pytest.mark.full
@pytest.mark.parametrize("make_adapters", [pytest.param(StackedTable, marks=LONG), PackedTable])
def test_without_graphs_of_their_own_rows_with_adapters_run_without(make_adapters: MakeAdapters) -> None:
    graphed, backend = runner(make_adapters=make_adapters)
    recorder = Recorder()
    table = graphed.adapters if make_adapters is PackedTable else None
    assert graph_steps(graphed.module, backend, graphed.plan, 4, lambda _: None, recorder, table)
    logits(graphed, with_adapters(steps()[:4], {"0": "one", "1": "two", "2": "two"}))
    assert recorder.replayed == 0
    logits(graphed, steps()[:4])
    assert recorder.replayed == 3


@long
def test_what_null_sequences_hold_reaches_nobody() -> None:
    """Not even what a broken request left in the first block, or in a graph's inputs."""
    graphed, backend = runner()
    assert graph_steps(graphed.module, backend, graphed.plan, 4, lambda _: None, Recorder())
    chosen = steps()[:5]
    want = logits(graphed, chosen)
    broken = make_sequence("broken", [3] * 24, [])
    used = {block for each in sequences() for block in each.block_table[:5]}
    for layer in range(LAYERS):
        for pool in backend.pools(layer):
            for block in set(range(SEQUENCES * BLOCKS_EACH)) - used:
                pool.rows[block] = float("nan")
    broken.block_table = sorted(set(range(SEQUENCES * BLOCKS_EACH)) - used)
    tables = [Chunk(broken, 2, 1, 2)] * 4
    assert logits(graphed, [tables])[0].isnan().any()
    for one, other in zip(logits(graphed, chosen), want, strict=True):
        assert torch.equal(one, other)


def test_steps_that_no_graph_fits_run_without(monkeypatch: pytest.MonkeyPatch) -> None:
    graphed, backend = runner()
    recorder = Recorder()
    assert graph_steps(graphed.module, backend, graphed.plan, 2, lambda _: None, recorder)
    a, b, c = sequences()
    logits(graphed, [[Chunk(a, 0, 14, 14), Chunk(b, 0, 9, 9)]])
    logits(graphed, [[Chunk(a, 14, 1, 14), Chunk(b, 9, 1, 9), Chunk(c, 0, 1, 0)]])  # three
    assert recorder.replayed == 0
    logits(graphed, [[Chunk(a, 15, 1, 15), Chunk(b, 10, 1, 10)]])
    assert recorder.replayed == 1
    # More parts than the cache, which sequences that share blocks may have.
    monkeypatch.setattr(triton_plan, "PART", 1)
    logits(graphed, [[Chunk(a, 16, 1, 16), Chunk(b, 11, 1, 11)]])
    assert recorder.replayed == 1


def test_a_graph_that_cannot_be_recorded_leaves_the_forward_as_it_is(
    want: list[torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    graphed, backend = runner()
    recorded: list[Step] = []

    def fails(step: Step) -> Step:
        recorded.append(step)
        if len(recorded) == 2:
            raise RuntimeError("operation not permitted when stream is capturing")
        return step

    assert not graph_steps(graphed.module, backend, graphed.plan, 4, lambda _: None, fails)
    assert "no CUDA graphs: recording failed" in caplog.text
    for one, other in zip(logits(graphed, steps()), want, strict=True):
        assert torch.equal(one, other)


class PretendedCuda:
    """The streams of torch.cuda, and recordings that break: torch then leaves their stream current."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = self.first = Mock()
        for name in ("graph_pool_handle", "Stream", "CUDAGraph"):
            monkeypatch.setattr(torch.cuda, name, Mock())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(torch.cuda, "graph", self.graph)

    @contextmanager
    def stream(self, stream: Mock) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, _: object, pool: object, stream: Mock, capture_error_mode: str) -> Iterator[None]:
        self.current = stream
        yield
        raise RuntimeError("the recording was invalidated")


def test_a_recording_that_breaks_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = PretendedCuda(monkeypatch)
    record = CudaGraphs()
    with pytest.raises(RuntimeError, match="invalidated"):
        record(lambda: torch.zeros(1))
    assert cuda.current is cuda.first


def test_buckets_reach_what_is_asked_for_and_no_further() -> None:
    assert buckets(1) == (1,)
    assert buckets(3) == (1, 2, 3)
    assert buckets(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert buckets(4096) == BUCKETS
