"""Learn the layers of a module from a forward without a cache, and refuse what we would get wrong.

During a dry run attention returns zeros. So every layer must ask for attention
exactly once, and the logits of a token must not change with the tokens before
it: if they do, something else mixes tokens (a convolution, a state, an attention
of the module's own), which a packed batch would mix across sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import get_annotations
from typing import Any

import torch

from serve_app.engine.attention import LayerSpec
from serve_app.engine.attention.recorder import RecordedCall, Recorder
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.model.forward import UnsupportedModel, active

# ([T] input ids, [T] positions, [R] rows) -> [R, V] logits
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_TOKENS = 8


def learn_layers(
    forward: Forward, *, name: str, config: Any, device: torch.device
) -> tuple[tuple[LayerSpec, ...], int]:
    """The cache's needs of every layer, and the width of the logits.

    `config` is the text configuration of the module, `name` what errors call it.
    UnsupportedModel names the feature of the module that we lack.
    """
    recorder = Recorder()
    positions = torch.arange(_TOKENS, device=device)
    one = _forward(forward, recorder, positions, positions)
    calls = recorder.calls
    expected = int(config.num_hidden_layers)
    if [call.layer for call in calls] != list(range(expected)):
        shown = ", ".join(str(call.layer) for call in calls[:8]) + (", ..." if len(calls) > 8 else "")
        raise UnsupportedModel(
            f"{name} calls attention for layers [{shown}] instead of once for each of its {expected} layers "
            "in order: layers of another kind (linear attention, convolution, state space, an attention of "
            "their own, or run twice) cannot be batched by this engine"
        )
    _check_windows(calls, name, config)
    specs = tuple(call.spec for call in calls)
    if one.is_meta:  # shapes alone: there are no numbers to compare
        return specs, one.shape[-1]
    others = (positions + _TOKENS) % int(config.vocab_size)
    others[-1] = positions[-1]
    two = _forward(forward, Recorder(), others, positions)
    change, largest = (one - two)[-1].abs().max().item(), one[-1].abs().max().item()
    tolerance = max(1e-4, 8 * torch.finfo(one.dtype).eps) * max(largest, 1e-6)
    if not change <= tolerance:  # NaN is refused too
        raise UnsupportedModel(
            f"{name} mixes tokens outside attention (a convolution, a state or an attention of its own), "
            "which cannot be batched by this engine"
        )
    return specs, one.shape[-1]


def _check_windows(calls: list[RecordedCall], name: str, config: Any) -> None:
    """Each sliding layer must pass its window to our attention, because no mask is built."""
    kinds = getattr(config, "layer_types", None)
    windows = [call.window for call in calls]
    if kinds is not None:
        for layer, (kind, asked) in enumerate(zip(kinds, windows, strict=True)):
            if (kind == "sliding_attention") != (asked is not None):
                raise UnsupportedModel(f"{name} declares layer {layer} {kind} but asks for window {asked}")
        return
    # A checkpoint may carry the key although its architecture has no window: then it means nothing.
    declared = any("sliding_window" in get_annotations(base) for base in type(config).__mro__)
    window = getattr(config, "sliding_window", None) if declared else None
    slides = window is not None and getattr(config, "use_sliding_window", True)
    if slides and window < config.max_position_embeddings and not any(windows):
        raise UnsupportedModel(f"{name} keeps its sliding window of {window} tokens in a mask of its own")
    if not slides and any(windows):
        raise UnsupportedModel(f"{name} asks for a window that its configuration does not have")


def _forward(
    forward: Forward, recorder: Recorder, tokens: torch.Tensor, positions: torch.Tensor
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
    with torch.inference_mode(), active(recorder, context):
        return forward(tokens, positions, positions)
