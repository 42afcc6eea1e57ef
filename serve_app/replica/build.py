"""Settings -> a loaded model: weights, cache, engine, tokenizer, warmed up.

The only place that wires `models`, `text` and `engine` together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from serve_app.config import ModelConfig
from serve_app.engine.attention.select import make_backend
from serve_app.engine.engine import Engine
from serve_app.engine.forward import UnsupportedModel
from serve_app.engine.loop import EngineLoop
from serve_app.engine.memory import CacheTooSmall
from serve_app.engine.runner import ModelRunner
from serve_app.models.errors import ModelLoadError
from serve_app.models.loader import LoadedModel, load_model
from serve_app.replica.prompt import PromptEncoder
from serve_app.replica.steps import OnOutputs, Steps
from serve_app.text.tokenizer import Tokenizer
from serve_app.types import EngineRequest, ModelInfo, SamplingParams

Progress = Callable[[str], None]

WARM_UP_TOKENS = 32  # enough for a prefill chunk and a few decodes, the shapes every request uses


@dataclass(frozen=True, slots=True)
class Loaded:
    """One model, ready to answer: `steps` makes the stepper for a callback."""

    info: ModelInfo
    encoder: PromptEncoder
    steps: Callable[[OnOutputs], Steps]


def load(config: ModelConfig, progress: Progress) -> Loaded:
    """Load everything `config` names, in this process.

    Raises ModelLoadError, whose message says what to do next.
    """
    engine, model = load_engine(config, progress)
    encoder = PromptEncoder.of(load_tokenizer(config, model.folder))
    info = ModelInfo(
        name=config.name,
        created=int(time.time()),
        context_window=engine.max_model_len,
        vocab_size=engine.vocab_size,
        has_chat_template=encoder.template is not None,
        has_fim=encoder.fim is not None,
        dtype=str(model.dtype).removeprefix("torch."),
        device=str(model.device),
        eos_token_ids=model.eos_token_ids,
    )
    return Loaded(info, encoder, lambda on_outputs: EngineLoop(engine, on_outputs))


def load_engine(config: ModelConfig, progress: Progress) -> tuple[Engine, LoadedModel]:
    """The token-level half: weights and an engine over them, warmed up."""
    torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
    model = load_model(config, progress)
    try:
        backend = make_backend(config.attention, model.device)
        runner = ModelRunner(
            _accelerate(model, config, progress),
            backend=backend,
            dtype=model.dtype,
            device=model.device,
            config=config.engine,
            context_window=model.context_window,
        )
    except (UnsupportedModel, CacheTooSmall, ValueError) as error:
        raise ModelLoadError(f"{config.name}: {error}") from error
    plan = runner.plan
    progress(
        f"KV cache of {plan.cache_bytes / 2**20:,.0f} MiB: {plan.num_blocks} blocks of "
        f"{plan.block_size} tokens, context window {plan.max_model_len}"
    )
    engine = Engine(
        runner,
        config.engine,
        eos_token_ids=frozenset(model.eos_token_ids),
        max_model_len=runner.max_model_len,
    )
    started = time.monotonic()
    _warm_up(engine)
    progress(f"warmed up in {time.monotonic() - started:.1f} s")
    return engine, model


def load_tokenizer(config: ModelConfig, folder: Path) -> Tokenizer:
    """The tokenizer of `folder`, with the operator's chat template if there is one."""
    template = None
    if config.chat_template is not None:
        try:
            template = config.chat_template.read_text("utf-8")
        except OSError as error:
            raise ModelLoadError(
                f"chat_template: {config.chat_template} cannot be read; check the path"
            ) from error
    try:
        return Tokenizer.load(folder, chat_template=template)
    except Exception as error:
        raise ModelLoadError(f"the tokenizer in {folder} cannot be used: {error}") from error


def _accelerate(model: LoadedModel, config: ModelConfig, progress: Progress) -> PreTrainedModel:
    """The module with its fast path for this device, where it has one."""
    if model.device.type != "cpu" or config.attention == "reference":
        return model.module
    from serve_app.engine.fused import accelerate_cpu

    progress("preparing the CPU kernels (the first start on a machine compiles them)")
    return accelerate_cpu(model.module, model.dtype)


def _warm_up(engine: Engine) -> None:
    """Run a short prompt and a few decodes, so that the first client does not pay for it."""
    length = min(WARM_UP_TOKENS, engine.max_model_len - 4)
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
