"""Learns the layers of a module from a forward without a cache, and refuses what we would get wrong.

During a dry run, attention and stateful functions return zeros. Every layer must call attention exactly once,
or, in a model with states, at most once. And a token's logits must not change when the tokens before it
change. If they change, something else mixes tokens: a convolution, a state, or an attention of the module's
own. In a packed batch, this would mix the tokens of different sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any

import torch

from serve_app.engine.attention import LayerSpec
from serve_app.engine.attention.recorder import RecordedCall, Recorder
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.model.forward import UnsupportedModel, active
from serve_app.engine.model.stages import Stage
from serve_app.engine.state import StateRecorder, StateSpec

# ([T] input ids, [T] positions, [R] rows) -> [R, V] logits
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Layers:
    """What a model's layers need in the cache, and the width of its logits."""

    attention: tuple[LayerSpec, ...]  # of the layers that attend
    numbers: tuple[int, ...]  # of those layers in the model
    states: tuple[StateSpec, ...]  # of its functions with a state, in the order of their calls
    width: int


def learn_layers(
    forward: Forward, *, name: str, config: Any, device: torch.device, stage: Stage | None = None
) -> Layers:
    """What the layers of a module need.

    `config` is the text configuration of the module, and `name` the module's name in errors. `stage`: which
    of the model's layers it has; None: all. Raises UnsupportedModel, which names the feature of the module
    that we do not support.
    """
    recorder, states = Recorder(), StateRecorder()
    positions = torch.arange(_TOKENS, device=device)
    one = _forward(forward, recorder, states, positions, positions)
    calls = recorder.calls
    every = tuple(range(int(config.num_hidden_layers)) if stage is None else stage.layers)
    numbers = tuple(call.layer for call in calls)
    # The layers with states may all be in other stages.
    some = bool(states.specs) or stage is not None
    in_order = numbers == tuple(sorted(set(numbers) & set(every))) if some else numbers == every
    if not in_order:
        shown = ", ".join(str(call.layer) for call in calls[:8]) + (", ..." if len(calls) > 8 else "")
        times = "at most once" if some else "once"
        raise UnsupportedModel(
            f"{name} calls attention for layers [{shown}] instead of {times} for each of its {len(every)} "
            "layers in order: a layer that runs or attends twice, or by code of its own, cannot be batched "
            "by this engine"
        )
    _check_windows(calls, name, config)
    layers = Layers(tuple(call.spec for call in calls), numbers, tuple(states.specs), one.shape[-1])
    if one.is_meta:  # shapes alone: there are no numbers to compare
        return layers
    others = (positions + _TOKENS) % int(config.vocab_size)
    others[-1] = positions[-1]
    two = _forward(forward, Recorder(), StateRecorder(), others, positions)
    change, largest = (one - two)[-1].abs().max().item(), one[-1].abs().max().item()
    tolerance = max(1e-4, 8 * torch.finfo(one.dtype).eps) * max(largest, 1e-6)
    if not change <= tolerance:  # NaN is refused too
        raise UnsupportedModel(
            f"{name} mixes tokens outside attention (a convolution, a state or an attention of its own), "
            "which cannot be batched by this engine"
        )
    if not calls:
        _check_places(forward, one, positions, name)
    return layers


def _check_places(forward: Forward, logits: torch.Tensor, positions: torch.Tensor, name: str) -> None:
    """Without attention, a token's logits must not depend on its place in the batch."""
    moved = _forward(forward, Recorder(), StateRecorder(), positions.roll(1), positions)
    if not torch.allclose(moved, logits.roll(1, 0), rtol=1e-3, atol=1e-4 * logits.abs().max().item()):
        raise UnsupportedModel(f"{name} takes no positions, so it cannot be batched here")


def _check_windows(calls: list[RecordedCall], name: str, config: Any) -> None:
    """Each sliding layer must pass its window to our attention, because no mask is built."""
    kinds = getattr(config, "layer_types", None)
    windows = [call.window for call in calls]
    if kinds is not None:
        for call in calls:
            kind, asked = kinds[call.layer], call.window
            if (kind == "sliding_attention") != (asked is not None):
                raise UnsupportedModel(
                    f"{name} declares layer {call.layer} {kind} but asks for window {asked}"
                )
        return
    # A checkpoint may carry the key although its architecture has no window: then it means nothing.
    declared = any("sliding_window" in get_annotations(base) for base in type(config).__mro__)
    window = getattr(config, "sliding_window", None) if declared else None
    slides = window is not None and getattr(config, "use_sliding_window", True)
    if calls and slides and window < config.max_position_embeddings and not any(windows):
        raise UnsupportedModel(f"{name} keeps its sliding window of {window} tokens in a mask of its own")
    if not slides and any(windows):
        raise UnsupportedModel(f"{name} asks for a window that its configuration does not have")


def _forward(
    forward: Forward,
    recorder: Recorder,
    states: StateRecorder,
    tokens: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Logits [T, V] of one sequence of `tokens`."""
    count = tokens.shape[0]
    context = ForwardContext(
        query_start=positions.new_tensor([0, count], dtype=torch.int32),
        context_lens=positions.new_tensor([count], dtype=torch.int32),
        block_tables=positions.new_zeros(1, 1, dtype=torch.int32),
        slots=positions,
        query_lens=(count,),
        lens=(count,),
        block_size=count,
    )
    with torch.inference_mode(), active(recorder, context, states=states):
        return forward(tokens, positions, positions)
