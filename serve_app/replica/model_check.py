"""Finds out from a model's configuration alone whether the model can be served, by which layers, and in how
much memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from serve_app.config import ModelConfig
from serve_app.engine.estimate import Estimate, device_memory, weights_too_large
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.engine.model.memory import CachePlan, CacheTooSmall
from serve_app.models.blueprint import Blueprint, read_blueprint
from serve_app.models.errors import ModelLoadError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    """The findings about a model that can be served and fits into memory."""

    model: Blueprint
    engine: Estimate | None  # None: it embeds
    device: str  # cpu or cuda
    memory: int  # bytes of each rank: its share of what is free beside a CPU, or all of a GPU's
    plan: CachePlan | None  # None: there is no cache, or it is known only at the start


def check_model(
    config: ModelConfig, progress: Callable[[str], None], memory: int | None = None
) -> ModelCheck:
    """Find the model of `config`, and determine what serving it needs.

    `memory`: the memory in bytes of a device on another machine; None: this machine's memory. If several
    ranks divide the model, the findings are those of the rank with the smallest cache. Raises ModelLoadError
    if the model is refused or does not fit.
    """
    device, own = device_memory(config.device)
    memory = memory or own
    if memory is None:
        raise ModelLoadError("this machine has no GPU: say the memory of one with --memory GIB")
    on_cpu = device == "cpu"
    memory = memory // config.ranks if on_cpu else memory
    stages = range(0, config.ranks, config.tensor_parallel)  # the first rank of each
    found = [_check_rank(config, progress, 0, device, memory)]
    found += [_check_rank(config, lambda line: None, rank, device, memory) for rank in stages[1:]]
    return min(found, key=_room)


def _room(found: ModelCheck) -> tuple[int, int]:
    return (0 if found.plan is None else found.plan.num_blocks), -found.model.weight_bytes


def _check_rank(
    config: ModelConfig, progress: Callable[[str], None], rank: int, device: str, memory: int
) -> ModelCheck:
    on_cpu = device == "cpu"
    model = read_blueprint(config, progress, on_cpu=on_cpu, rank=rank)
    try:
        size = model.weight_bytes
        if model.embeds:
            if size >= memory:
                raise weights_too_large(size, memory)
            return ModelCheck(model=model, engine=None, device=device, memory=memory, plan=None)
        engine = Estimate.of(model.module, config)
        plan = engine.plan(config, window=model.window, weight_bytes=size, memory=memory, on_cpu=on_cpu)
    except UnsupportedModel as error:
        raise ModelLoadError(f"{model.architecture} cannot be served: {error}") from error
    except CacheTooSmall as error:
        raise ModelLoadError(f"{model.architecture} does not fit: {error}") from error
    return ModelCheck(model=model, engine=engine, device=device, memory=memory, plan=plan)
