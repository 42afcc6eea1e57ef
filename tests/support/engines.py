"""Engines over small models, on one device or on as many ranks as `--tensor-parallel` says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import torch
from transformers import PreTrainedModel

from serve_app.config import EngineConfig, ModelConfig
from serve_app.engine.assemble import assemble
from serve_app.engine.engine import Engine
from serve_app.engine.grammar_queue import GrammarQueue
from serve_app.engine.ranks.leader import LeadingRunner
from serve_app.models.errors import ModelLoadError
from serve_app.replica.ranks.part import part_of
from tests.support.ranks import RankFollowers, RankThreads, load_part, runner_of
from tests.support.several_ranks import ranks

WINDOW: Final = 256
EOS: Final = (2,)
CPU: Final = torch.device("cpu")


def engine_over(
    model: PreTrainedModel,
    *,
    grammars: GrammarQueue | None = None,
    engine: dict[str, Any] | None = None,
    **settings: Any,
) -> Engine:
    """A new engine over `model`, which changes, with a window of WINDOW tokens.

    `engine` and `settings`: of the engine and of the model. Blocks may be too small for a deploy file, to be
    filled soon. Skips the test if the model cannot be divided.
    """
    config = ModelConfig(name="tiny", source="tiny", device="cpu", threads=1, **settings)
    config = config.model_copy(
        update={"engine": EngineConfig(**{"num_blocks": 128, "block_size": 16, **(engine or {})})}
    )
    if ranks() > 1:
        with _saved(model, config) as divided:
            return divided_engine(divided, WINDOW, EOS, lambda vocab_size: grammars)
    return assemble(
        model,
        dtype=model.dtype,
        device=CPU,
        context_window=WINDOW,
        eos_token_ids=EOS,
        config=config,
        progress=lambda _: None,
        make_grammars=lambda vocab_size: grammars,
    )


def divided_engine(
    config: ModelConfig,
    context_window: int,
    eos_token_ids: tuple[int, ...],
    make_grammars: Callable[[int], GrammarQueue | None],
) -> Engine:
    """An engine over the model of `config`, whose ranks are threads of this process."""
    threads = RankThreads(config.ranks, config.pipeline_parallel)
    with _others(threads, config, context_window) as others:
        groups = threads.groups(0)
        model = load_part(config, groups)
        return assemble(
            model.module,
            dtype=model.dtype,
            device=model.device,
            context_window=context_window,
            eos_token_ids=eos_token_ids,
            config=config,
            progress=lambda _: None,
            make_grammars=make_grammars,
            part=part_of(config, model, groups),
            others=others,
        )


def divided_runner(model: PreTrainedModel, quantization: str, engine: EngineConfig) -> LeadingRunner:
    """The runner of rank 0 over `model`, with the others in threads.

    Skips the test if the model cannot be divided.
    """
    config = ModelConfig(name="tiny", source="tiny", device="cpu", threads=1, quantization=quantization)
    threads = RankThreads(ranks())
    with (
        _saved(model, config.model_copy(update={"engine": engine})) as divided,
        _others(threads, divided, WINDOW) as others,
    ):
        groups = threads.groups(0)
        runner, part = runner_of(divided, groups, WINDOW)
        return LeadingRunner(runner, groups, others, part.cuts, others.await_ready())


@contextmanager
def _saved(model: PreTrainedModel, config: ModelConfig) -> Iterator[ModelConfig]:
    """The settings of `config` for `model`, saved in a folder of this block and divided among ranks."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        where = {"source": folder, "tensor_parallel": ranks(), "dtype": str(model.dtype).split(".")[1]}
        try:
            yield config.model_copy(update=where)
        except ModelLoadError as error:
            pytest.skip(str(error))


@contextmanager
def _others(threads: RankThreads, config: ModelConfig, context_window: int) -> Iterator[RankFollowers]:
    others = RankFollowers(threads, config, context_window)
    try:
        yield others
    except BaseException:
        threads.abort()
        raise
