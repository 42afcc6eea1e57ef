"""Whether a model that was made fast still computes what transformers computes: an end-to-end comparison.

A short random prompt goes through the model's first layers, from its embedding to its logits, once with
transformers' own layers and once with the layers that will run. Enough first layers are taken to include
every kind of layer. Does not depend on devices or weight formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedModel

from serve_app.engine.attention import AttentionBackend
from serve_app.engine.attention.numbering import Numbered
from serve_app.engine.attention.recorder import RecordedCall, Recorder
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.fused.layer import AttentionCall
from serve_app.engine.model.forward import active, connect_attention
from serve_app.engine.model.indexers import connect_indexers
from serve_app.engine.model.stages import stage_of
from serve_app.engine.model.stateful import wants_positions

TOKENS: Final = 5  # of the prompt
LEAST: Final = 2  # layers, if the model has as many
BLOCK: Final = 16  # tokens of the only block in the caches

# Of the logits of LEAST layers, relative and by norm: the original rounds to its type after every operation.
TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def run_model(model: PreTrainedModel, recorder: Recorder | None = None) -> None:
    """One forward of a few tokens, in which attention returns zeros; `recorder` notes how it is called."""
    _logits(model, recorder or Recorder(), torch.arange(TOKENS, device=model.device))


class FirstLayers:
    """The results of a model's first layers for a short prompt, before they are fused."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        config = model.config.get_text_config()
        self._ids = torch.randint(config.vocab_size, (TOKENS,), generator=torch.Generator().manual_seed(0))
        layers = getattr(model.get_decoder(), "layers", None)
        layers = layers if isinstance(layers, nn.ModuleList) else []
        declared: Sequence[object] = getattr(config, "layer_types", None) or [None] * len(layers)
        # Some layers of a kind have experts, some a plain MLP.
        kinds = [
            (kind, *(type(part) for part in layer.modules()))
            for kind, layer in zip(declared, layers, strict=False)
        ]
        self._kinds: Sequence[object] = kinds
        stage = stage_of(model)
        held = range(len(layers)) if stage is None or not len(layers) else stage.layers
        found = (kinds.index(kind) + 1 for kind in set(kinds[held.start : held.stop]))
        self.count = min(held.stop, max((held.start + LEAST, *found)))
        with self.alone():
            recorder = Recorder()
            run_model(model, recorder)
            self._calls: Sequence[RecordedCall] = recorder.calls
            self._numbers = [call.layer for call in self._calls]
            # The dry run refuses a model that calls attention in another way: there is nothing to compare.
            in_order = self._numbers == sorted(set(self._numbers))
            self._want = self._compute(ReferenceAttention()) if self._calls and in_order else None

    def call_of(self, index: int) -> AttentionCall | None:
        """How the layer with this index calls attention: as the first layer of the same kind does.

        None: it does not attend.
        """
        first = self._kinds.index(self._kinds[index])
        call = next((call for call in self._calls if call.layer == first), None)
        return None if call is None else AttentionCall(call.scale, call.window, call.softcap, call.sinks)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside the context, the model has only its first layers. If the layers have been fused meanwhile,
        they count as one."""
        decoder: Any = self._model.get_decoder()
        if not self.count or len(decoder.layers) <= self.count:
            yield
            return
        layers = decoder.layers
        decoder.layers = layers[: self.count]
        try:
            yield
        finally:
            decoder.layers = layers

    def wrong(self, backend: AttentionBackend, error: float) -> str | None:
        """How much its logits differ from the original's, if they differ too much; None if they are right.

        `error` is the relative error, by norm, that the weight format may add to rounding errors.
        """
        if self._want is None:
            return None
        with self.alone():
            got = self._compute(backend)
        found = float((got - self._want).norm() / self._want.norm().clamp_min(1e-30))
        roundings = max(1.0, self.count / LEAST) ** 0.5  # those of each layer add up like steps of a walk
        right = found <= TOLERANCE[self._model.dtype] * roundings + error  # NaN is not
        return None if right else f"its logits are off by {found:.1g}"

    def _compute(self, backend: AttentionBackend) -> torch.Tensor:
        specs = tuple(call.spec for call in self._calls)
        backend.allocate(specs, 1, BLOCK, self._model.dtype, self._model.device)
        if self._numbers != list(range(len(self._numbers))):
            backend = Numbered(backend, self._numbers)
        return _logits(self._model, backend, self._ids.to(self._model.device))


def _logits(model: PreTrainedModel, backend: AttentionBackend, ids: torch.Tensor) -> torch.Tensor:
    """The logits [T, V] float32 of one short sequence, which is in the first block of a cache."""
    connect_attention(model)
    connect_indexers(model)
    positions = torch.arange(len(ids), device=model.device)
    context = ForwardContext(
        query_start=positions.new_tensor([0, len(ids)], dtype=torch.int32),
        context_lens=positions.new_tensor([len(ids)], dtype=torch.int32),
        block_tables=positions.new_zeros(1, 1, dtype=torch.int32),
        slots=positions,
        query_lens=(len(ids),),
        lens=(len(ids),),
        block_size=BLOCK,
    )
    with torch.inference_mode(), active(backend, context):
        places = {"position_ids": positions[None]} if wants_positions(model) else {}
        out = model(input_ids=ids[None], **places, use_cache=False)
    logits: torch.Tensor = out.logits[0].float()
    return logits
