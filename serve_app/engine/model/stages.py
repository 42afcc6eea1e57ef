"""A module that has only some layers of a model: where hidden states come in, and where they go out.

The first layer of a stage gets the hidden states of the stage before, and those behind its last layer go to
the next one. Without a line to other stages, as in a dry run, the module is a small model by itself. Does not
depend on how stages talk to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.model.forward import joined_line

_PLACE: Final = "serve_app_stage"


@dataclass(frozen=True, slots=True)
class Stage:
    """Which layers of a model a module has. Its other layers have no tensors, and pass on hidden states."""

    layers: range
    vocab_size: int  # of the model
    has_head: bool


def connect_stage(model: PreTrainedModel, vocab_size: int) -> None:
    """Let `model`, whose layers are still transformers' own, run as a stage if it lacks layers.

    `vocab_size`: of the whole model, whose head may be elsewhere.
    """
    every = _layers_of(model)
    own = [index for index, layer in enumerate(every) if _has_tensors(layer)]
    if len(own) == len(every):
        return
    stage = Stage(range(own[0], own[-1] + 1), vocab_size, _has_tensors(model.get_output_embeddings()))
    setattr(model, _PLACE, stage)
    every[own[0]].register_forward_pre_hook(_enter, with_kwargs=True)
    every[own[-1]].register_forward_hook(_leave)


def stage_of(model: nn.Module) -> Stage | None:
    """The stage that `model` is; None: it has all layers."""
    stage: Stage | None = getattr(model, _PLACE, None)
    return stage


def _layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """The layers of a model: the longest list of its decoder."""
    lists = [child for child in model.get_decoder().children() if isinstance(child, nn.ModuleList)]
    return max(lists, key=len, default=nn.ModuleList())


def _has_tensors(module: Any) -> bool:
    return next(module.parameters(), None) is not None


def _enter(layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    line = joined_line()
    if line is None:
        return None
    if args:
        return (line.enter(args[0]), *args[1:]), options
    return args, {**options, "hidden_states": line.enter(options["hidden_states"])}


def _leave(layer: nn.Module, inputs: object, output: Any) -> None:
    line = joined_line()
    if line is not None:
        line.leave(output[0] if isinstance(output, tuple) else output)
