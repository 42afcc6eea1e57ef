"""A loaded module -> an engine over it, with the fastest paths this device has, warmed up.

Knows devices and settings; not where the weights came from, nor text.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import torch
from transformers import PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.engine.attention.select import make_backend, resolve
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.engine import Engine
from serve_app.engine.grammar_queue import GrammarQueue
from serve_app.engine.kernels import native
from serve_app.engine.kernels.quantized import Quantization
from serve_app.engine.model.adapter_table import MakeAdapters
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.memory import keep_to_share
from serve_app.engine.model.packed_adapters import PackedTable
from serve_app.engine.model.runner import ModelRunner
from serve_app.types import EngineRequest, SamplingParams

Progress = Callable[[str], None]

STILL_S: Final = 5.0  # compiled kernels are loaded in a fraction of it
PACKS_S: Final = 10.0
TRIES_S: Final = 15.0
WARM_UP_TOKENS = 32  # enough for a prefill chunk and a few decodes, the shapes every request uses


def use_threads(config: ModelConfig) -> None:
    """Give torch as many threads as the settings say; by default, as many as this process may use."""
    torch.set_num_threads(config.threads or _usable_cpus())


def use_machine(config: ModelConfig) -> None:
    """Hold torch to the threads and to the part of a GPU that this process has; before weights are loaded."""
    use_threads(config)
    if config.device != "cpu":
        keep_to_share(config.engine.gpu_share)


def _usable_cpus() -> int:
    """Cores that this process may run on; where the system has no such limit, all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(config: ModelConfig, progress: Progress) -> bool:
    """Set the threads and the part of a GPU, and build the CPU kernels; returns whether there are any.

    With the kernels, bfloat16 weights run at the speed of memory on any CPU. The choice of a dtype
    depends on that.
    """
    use_machine(config)
    if config.device == "cuda" or config.attention not in ("auto", "cpu"):
        return False
    progress("preparing the CPU kernels")
    with waiting(progress, "compiling the CPU kernels, or waiting for the processor", STILL_S):
        return native() is not None


@contextlib.contextmanager
def waiting(progress: Progress, line: str, every_s: float) -> Iterator[None]:
    """Inside, `progress` gets `line` with the seconds so far, every `every_s` seconds."""
    done, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(every_s):
            progress(f"{line}: {time.monotonic() - began:.0f} s so far")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


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

    `make_grammars` gets the size of the model's vocabulary.
    Raises UnsupportedModel, CacheTooSmall, or ValueError for settings that contradict each other.
    """
    attention = resolve(config.attention, device)
    stacked = attention == "triton"  # adapters
    if config.attention == "auto" and device.type == "cuda":
        from serve_app.engine.cuda.trial.choose import choose_kernels

        with waiting(progress, "trying the GPU's kernels", TRIES_S):
            choice = choose_kernels(module, dtype=dtype, device=device, config=config, progress=progress)
        attention, stacked = choice.attention, choice.adapters
    began = time.monotonic()
    backend = make_backend(attention, device)
    quantization = None if config.quantization == "none" else Quantization(config.quantization)
    if attention == "cpu":
        if quantization is not None:
            progress(f"quantising the weights to {quantization}")
        with waiting(progress, "packing the weights", PACKS_S):
            module = accelerate_cpu(module, dtype, quantization=quantization, progress=progress)
        progress(f"packed the weights in {time.monotonic() - began:.1f} s")
    elif quantization is not None:
        raise UnsupportedModel(
            f"quantization {quantization} is for models on a CPU; this one runs on {device}"
        )
    elif attention == "triton":
        from serve_app.engine.cuda.fused import accelerate_cuda

        progress("fusing the layers (the first start on a machine compiles their kernels)")
        module = accelerate_cuda(module, dtype)
    began = time.monotonic()
    graphs = attention == "triton" and device.type == "cuda" and config.engine.cuda_graphs
    runner = ModelRunner(
        module,
        backend=backend,
        dtype=dtype,
        device=device,
        config=config.engine,
        context_window=context_window,
        make_adapters=_stacked_table() if stacked else PackedTable,
        graphed=_largest_graph(module, config.engine.max_step_tokens) if graphs else 0,
    )
    plan = runner.plan
    in_codes = "" if config.engine.kv_cache_dtype == "auto" else f" in {config.engine.kv_cache_dtype}"
    progress(
        f"KV cache of {plan.cache_bytes / 2**20:,.0f} MiB: {plan.num_blocks} blocks of "
        f"{plan.block_size} tokens{in_codes}, context window {plan.max_model_len}, "
        f"in {time.monotonic() - began:.1f} s"
    )
    if graphs:
        from serve_app.engine.cuda.graphs import graph_steps

        # Graphs of their own are for adapters that are sure to come, not for those that a client may send.
        adapters = runner.adapters if stacked and config.adapters else None
        graph_steps(
            module,
            backend,
            plan,
            config.engine.max_sequences,
            progress,
            adapters=adapters,
            tokens=config.engine.max_step_tokens,
        )
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


def _largest_graph(module: PreTrainedModel, tokens: int) -> int:
    from serve_app.engine.cuda.graphs import largest_graph

    return largest_graph(module, tokens)


def _stacked_table() -> MakeAdapters:
    from serve_app.engine.cuda.adapters.table import StackedTable

    return StackedTable


def warm_up(engine: Engine) -> None:
    """Run a short prompt and a few decodes, so that the first client does not pay for it."""
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
