"""Builds a warmed-up engine over a loaded module, with the fastest paths that this device has.

Depends on the settings, but not on devices, weight formats, the source of the weights, or text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from serve_app.codes.tensor import plain_weights
from serve_app.config import ModelConfig
from serve_app.engine.devices import choose_device
from serve_app.engine.engine import Engine
from serve_app.engine.grammar_queue import GrammarQueue
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.memory import ALONE
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.model.stages import connect_stage
from serve_app.engine.model.sums import Joints, connect_ranks
from serve_app.engine.ranks.groups import RankGroups
from serve_app.engine.ranks.leader import AdapterCuts, LeadingRunner, Others
from serve_app.engine.weights.formats import FORMATS
from serve_app.types import EngineRequest, SamplingParams

Progress = Callable[[str], None]

WARM_UP_TOKENS = 32  # enough for a prefill chunk and a few decodes, the shapes every request uses


@dataclass(frozen=True, slots=True)
class Part:
    """A module that is one rank's part of a model."""

    groups: RankGroups
    cuts: AdapterCuts
    joints: Joints


def make_runner(
    module: PreTrainedModel,
    *,
    dtype: torch.dtype,
    device: torch.device,
    context_window: int,
    config: ModelConfig,
    progress: Progress,
    part: Part | None = None,
) -> ModelRunner:
    """Choose attention and linears, and size the cache. `part`: what `module` is, unless it is a whole model.

    Raises UnsupportedModel or CacheTooSmall.
    """
    if part is not None:
        connect_stage(module, part.joints.vocab_size)
        if part.groups.stage.size > 1:
            connect_ranks(module, part.groups.stage, part.joints)
    made = choose_device(module, dtype=dtype, device=device, config=config, progress=progress)
    if part is not None and not part.groups.every.same(made.kind):
        raise UnsupportedModel("its ranks would run on different kernels; set `attention` to cuda")
    weights = FORMATS[config.quantization]
    if made.kind not in weights.loads:
        raise UnsupportedModel(
            f"quantization {weights.name} needs the kernels of attention: "
            f"{' or '.join(weights.loads)}; this model runs on {device} without them"
        )
    module = made.accelerate(module, dtype, weights, progress)
    count, size = plain_weights(module)
    if count:
        progress(f"{count} coded weights are used otherwise than by products: {size / 2**30:,.2f} GiB")
    if part is not None:
        part.groups.every.meet()  # before one of them looks for free memory
    began = time.monotonic()
    runner = ModelRunner(
        module,
        backend=made.backend,
        dtype=dtype,
        device=device,
        config=config.engine,
        context_window=context_window,
        make_adapters=made.make_adapters,
        graphed=made.largest_graph(),
        state_kernels=made.state_kernels,
        agreement=ALONE if part is None else part.groups.every,
        line=None if part is None or part.groups.stages == 1 else part.groups,
    )
    plan = runner.plan
    in_codes = "" if config.engine.kv_cache_dtype == "auto" else f" in {config.engine.kv_cache_dtype}"
    of_rank = "" if part is None else " in each rank"
    progress(
        f"KV cache of {plan.cache_bytes / 2**20:,.0f} MiB{of_rank}: {plan.num_blocks} blocks of "
        f"{plan.block_size} tokens{in_codes}, context window {plan.max_model_len}, "
        f"in {time.monotonic() - began:.1f} s"
    )
    made.record(runner, progress)
    return runner


def assemble(
    module: PreTrainedModel,
    *,
    dtype: torch.dtype,
    device: torch.device,
    context_window: int,
    eos_token_ids: tuple[int, ...],
    config: ModelConfig,
    progress: Progress,
    make_grammars: Callable[[int], GrammarQueue | None] = lambda vocab_size: None,
    part: Part | None = None,
    others: Others | None = None,
) -> Engine:
    """Make a runner, build the engine over it and run it once.

    `make_grammars` is called with the size of the model's vocabulary. `part`, `others`: of rank 0 of a model
    that is divided among ranks. Raises UnsupportedModel, CacheTooSmall, or ValueError for settings that
    contradict each other.
    """
    own = make_runner(
        module,
        dtype=dtype,
        device=device,
        context_window=context_window,
        config=config,
        progress=progress,
        part=part,
    )
    runner: ModelRunner | LeadingRunner = own
    if part is not None and others is not None:
        runner = LeadingRunner(own, part.groups, others, part.cuts, others.await_ready())
    began = time.monotonic()
    grammars = make_grammars(runner.vocab_size)
    progress(f"waited {time.monotonic() - began:.1f} s for the tokenizer and its grammars")
    engine = Engine(
        runner,
        config.engine,
        eos_token_ids=frozenset(eos_token_ids),
        max_model_len=own.max_model_len,
        grammars=grammars,
        adapters=runner.adapters,
    )
    started = time.monotonic()
    warm_up(engine)
    progress(f"warmed up in {time.monotonic() - started:.1f} s")
    return engine


def warm_up(engine: Engine) -> None:
    """Run a short prompt and a few decodes, so that the first client does not pay for the warm-up."""
    length = max(1, min(WARM_UP_TOKENS, engine.max_model_len - 4))
    engine.add(
        EngineRequest(
            id="warm-up",
            token_ids=tuple(i % engine.vocab_size for i in range(length)),
            sampling=SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True),
        )
    )
    while engine.has_work():
        engine.step()
    engine.check_integrity()
