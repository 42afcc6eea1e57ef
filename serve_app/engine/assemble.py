"""Builds a warmed-up engine over a loaded module, with the fastest paths that this device has.

Depends on the settings, but not on devices, weight formats, the source of the weights, or text.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from serve_app.codes.tensor import plain_weights
from serve_app.config import ModelConfig
from serve_app.engine.devices import choose_device
from serve_app.engine.engine import Engine
from serve_app.engine.grammar_queue import GrammarQueue
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.weights.formats import FORMATS
from serve_app.types import EngineRequest, SamplingParams

Progress = Callable[[str], None]

WARM_UP_TOKENS = 32  # enough for a prefill chunk and a few decodes, the shapes every request uses


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
) -> Engine:
    """Choose attention and linears, size the cache, build the engine and run it once.

    `make_grammars` is called with the size of the model's vocabulary.
    Raises UnsupportedModel, CacheTooSmall, or ValueError for settings that contradict each other.
    """
    made = choose_device(module, dtype=dtype, device=device, config=config, progress=progress)
    weights = FORMATS[config.quantization]
    if made.kind not in weights.loads:
        raise UnsupportedModel(
            f"quantization {weights.name} needs the kernels of attention: "
            f"{' or '.join(weights.loads)}; this model runs on {device} without them"
        )
    module = made.accelerate(module, dtype, weights, progress)
    count, size = plain_weights(module)
    if count:
        progress(f"{count} quantised weights are used otherwise than by products: {size / 2**30:,.2f} GiB")
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
    )
    plan = runner.plan
    in_codes = "" if config.engine.kv_cache_dtype == "auto" else f" in {config.engine.kv_cache_dtype}"
    progress(
        f"KV cache of {plan.cache_bytes / 2**20:,.0f} MiB: {plan.num_blocks} blocks of "
        f"{plan.block_size} tokens{in_codes}, context window {plan.max_model_len}, "
        f"in {time.monotonic() - began:.1f} s"
    )
    made.record(runner, progress)
    began = time.monotonic()
    grammars = make_grammars(runner.vocab_size)
    progress(f"waited {time.monotonic() - began:.1f} s for the tokenizer and its grammars")
    engine = Engine(
        runner,
        config.engine,
        eos_token_ids=frozenset(eos_token_ids),
        max_model_len=runner.max_model_len,
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
