"""Graphs of models whose layers are transformers' own: on a device, else as a tape of what steps run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.attention.triton import backend as triton_backend
from serve_app.engine.attention.triton import plan as triton_plan
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.cache.slots import SlotPool
from serve_app.engine.cache.state_tables import StateTables
from serve_app.engine.cuda.capture import CudaGraphs, Record, Step
from serve_app.engine.cuda.experts.grouped import PLACE, has_grouped
from serve_app.engine.cuda.fused import accelerate_cuda
from serve_app.engine.cuda.graphs import graph_steps
from serve_app.engine.cuda.own_layers import OwnLayers
from serve_app.engine.cuda.states.launch import TritonStates
from serve_app.engine.cuda.watch import NotRecordable, watched
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from serve_app.engine.state import StateKernels, native_states
from tests.support.tiny_models import BLOCK, make_model, make_sequence, tiny_config
from tests.support.tiny_states import BASE as STATES_BASE
from tests.support.tiny_states import KINDS as STATEFUL
from tests.support.triton_interpreter import LONG, long

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCKS_EACH, SEQUENCES = 6, 2


@pytest.fixture(autouse=True)
def plain_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of a few tokens have several parts, and a tape sees what computes states."""
    for module in (triton_backend, triton_plan):
        monkeypatch.setattr(module, "PART", 8)
    monkeypatch.setattr(native_states, "native", lambda: None)


class Counted:
    """Replays of graphs, and how many there were."""

    def __init__(self) -> None:
        self.replayed = 0
        self._record: Record = CudaGraphs() if DEVICE.type == "cuda" else _tape()

    def __call__(self, step: Step) -> Step:
        replay = self._record(step)

        def counted() -> torch.Tensor:
            self.replayed += 1
            return replay()

        return counted


def _tape() -> Record:
    from tests.support.tape import record

    return record


def runner_of(model: PreTrainedModel, state_kernels: StateKernels | None = None) -> ModelRunner:
    """With experts as a GPU computes them."""
    model = model.to(DEVICE)
    if any(map(has_grouped, model.modules())):
        accelerate_cuda(model, torch.float32)
        assert any(hasattr(part, PLACE) for part in model.modules())
    return ModelRunner(
        model,
        backend=TritonAttention(),
        dtype=torch.float32,
        device=DEVICE,
        config=EngineConfig(block_size=BLOCK, num_blocks=SEQUENCES * BLOCKS_EACH, max_model_len=24),
        state_kernels=state_kernels,
    )


def steps(runner: ModelRunner) -> Iterator[torch.Tensor]:
    """Logits of prompts, of decodes of two sequences and of one, of a prompt beside a decode, and of two
    decodes."""
    order = torch.randperm(SEQUENCES * BLOCKS_EACH, generator=torch.Generator().manual_seed(3))
    tables = order.view(SEQUENCES, -1).tolist()
    ids = torch.randint(3, 96, (SEQUENCES, 24), generator=torch.Generator().manual_seed(4)).tolist()
    a, b = (make_sequence(str(i), ids[i], tables[i]) for i in range(SEQUENCES))
    states = StateTables(SlotPool(runner.num_slots or 6), BLOCK, prefix_cache=False)
    for chunks in (
        [Chunk(a, 0, 9, 9), Chunk(b, 0, 1, 0)],
        [Chunk(a, 9, 1, 9), Chunk(b, 1, 1, 1)],
        [Chunk(a, 10, 1, 10)],
        [Chunk(a, 11, 1, 11), Chunk(b, 2, 4, 3)],
        [Chunk(b, 6, 1, 6), Chunk(a, 12, 1, 12)],
    ):
        if runner.num_slots:
            states.assign(chunks)
        yield runner.run(build_batch(chunks, BLOCK, DEVICE)).clone()
        if runner.num_slots:
            for chunk in chunks:
                states.advance(chunk.sequence, chunk, chunk.end)
                states.settle(chunk)


def graphs_of(runner: ModelRunner, record: Record, tokens: int = 0) -> bool:
    return graph_steps(
        *(runner.module, runner.backend, runner.plan, SEQUENCES, lambda _: None, record),
        tokens=tokens,
        states=runner.states,
    )


def model_of(family: str) -> PreTrainedModel:
    """Of two layers, one of each kind."""
    if family not in STATEFUL:
        return make_model(tiny_config(family, num_hidden_layers=2, n_layer=2))
    torch.manual_seed(0)
    kinds = STATEFUL[family]
    settings = STATES_BASE | kinds | {"num_hidden_layers": 2}
    if "layer_types" in kinds:
        settings["layer_types"] = kinds["layer_types"][:2]
    return make_model(AutoConfig.for_model(family, **settings))


# The interpreter is slow: few models, and of these decodes alone.
QUICK = ("qwen3_5_text",)
OTHERS = ("cohere2", "deepseek_v3", "gpt2", "gpt_neox", "opt", "phi")


@pytest.mark.parametrize(
    ("family", "tokens"),
    [
        *((each, 0) for each in QUICK),
        *(pytest.param(each, 32, marks=LONG) for each in (*OTHERS, *STATEFUL)),
    ],
)
def test_graphs_give_the_logits_of_steps_without(family: str, tokens: int) -> None:
    """Of decodes and of prompts. Kernels compute the states."""
    want = list(steps(runner_of(model_of(family))))
    graphed = runner_of(model_of(family), TritonStates())
    record = Counted()
    assert graphs_of(graphed, record, tokens)
    assert isinstance(graphed.module.get_decoder().forward, OwnLayers)
    recorded = record.replayed  # graphs are compared with their steps
    for one, other in zip(steps(graphed), want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert record.replayed - recorded == (5 if tokens else 3)


def test_experts_that_are_looped_over_are_not_recorded_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    graphed = runner_of(model_of("deepseek_v3"))
    graphed.module.set_experts_implementation("eager")
    assert not graphs_of(graphed, Counted())
    assert "no CUDA graphs, steps are launched kernel by kernel: nonzero in modeling_" in caplog.text
    assert not isinstance(graphed.module.get_decoder().forward, OwnLayers)


def test_nor_is_a_decoder_that_needs_the_tokens_themselves(caplog: pytest.LogCaptureFixture) -> None:
    graphed = runner_of(model_of("gemma4_text"))
    assert not graphs_of(graphed, Counted())
    assert "in modeling_gemma4.py, line" in caplog.text


def test_nor_are_states_that_plain_torch_computes(caplog: pytest.LogCaptureFixture) -> None:
    assert not graphs_of(runner_of(model_of("lfm2")), Counted())
    assert "plain torch computes the states" in caplog.text


@long
def test_a_graph_that_gives_another_result_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    def stuck(step: Step) -> Step:
        kept = step().clone()
        return lambda: kept

    graphed = runner_of(model_of("gpt2"))
    assert not graphs_of(graphed, stuck)
    assert "differs from the step by" in caplog.text


x = torch.tensor([1.0, -2.0, 3.0], device=DEVICE)


@pytest.mark.parametrize(
    "step",
    [
        lambda: x[x > 0],
        lambda: x * float(x.sum()),
        lambda: x.nonzero(),
        lambda: x.repeat_interleave((x > 0).long()),
        lambda: x.index_put((x > 0,), x.sum()),
        lambda: x if (x > 0).any() else -x,
        lambda: x.to("meta") if DEVICE.type == "cpu" else x.cpu(),
    ],
)
def test_what_the_host_must_wait_for_is_seen(step: Step) -> None:
    with pytest.raises(NotRecordable, match=r"test_own_layers\.py, line \d+"):
        watched(step)


def test_what_it_need_not_wait_for_is_let_through() -> None:
    places = torch.tensor([2, 0], device=DEVICE)
    out = watched(lambda: x[places].repeat_interleave(2).masked_fill(x.sum() > 9, 0))
    assert out.tolist() == [
        3,
        3,
        1,
        1,
    ]
