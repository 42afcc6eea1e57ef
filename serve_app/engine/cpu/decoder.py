"""Decoder layers on the native functions: one call for all layers together, or a few calls for each layer.

A stack of fused layers takes the place of the model's layers. If the cache is native and our kernels compute
all products, a step is a single native call. Otherwise (dry runs, other backends, products by oneDNN, rows
with adapters) the step runs layer by layer, with the same results. Activations are float32. Depends on
neither batches nor cache layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.attention.numbering import Numbered
from serve_app.engine.cpu.delta import DeltaLayer
from serve_app.engine.cpu.native_layer import NativeLayer
from serve_app.engine.fused.layer import AttentionLayer, DecoderStack
from serve_app.engine.fused.rotary import Factors
from serve_app.engine.kernels.layers import Layers, NativeCache
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import LayerStruct
from serve_app.engine.model.forward import ActiveStep, current
from serve_app.engine.norm import Pending
from serve_app.engine.state.pools import StepStates


class FusedLayer(NativeLayer, AttentionLayer[Native]):
    """A decoder layer that attends."""

    def _describe_mixing(self) -> dict[str, Any] | None:
        call, qkv = self._call, self._qkv.describe()
        if qkv is None or call.sinks is not None:
            return None
        q_norm, k_norm = (norm.data_ptr() for norm in self._norms) if self._norms else (None, None)
        return {
            "qkv": qkv,
            "q_norm": q_norm,
            "k_norm": k_norm,
            "delta": None,
            "heads": self._heads,
            "window": call.window or 0,
            "gated": self._gated,
            "whole": self._whole,
            "rotary": self._rotary.kind,
            "eps_head": self._eps_head,
            "scale": call.scale,
            "softcap": call.softcap or 0.0,
        }

    def _gate(self, heads: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        made = heads.float().contiguous()
        self._kernels.gate_heads(made, gates)
        return made

    def _attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [T, H, D], all float32."""
        step, call, kernels = current(), self._call, self._kernels
        heads = qkv.view(len(qkv), -1, self._head_dim)
        cache = _native_cache(step, self.layer_idx)
        if cache is not None:
            kernels.rope_and_cache(
                *(qkv, cos, sin, self._norms, self._eps_head, cache, step.context.slots, self._heads),
                whole=self._whole,
            )
            return kernels.attend(
                heads[:, : self._heads],
                cache,
                step.context,
                scale=call.scale,
                window=call.window,
                softcap=call.softcap,
                sinks=call.sinks,
            )
        return self._attend_by_backend(qkv, cos, sin)


class FusedStack(DecoderStack):
    """Runs all layers by one native call if that is possible. `layers`: of NativeLayer."""

    def __init__(self, layers: Iterable[nn.Module], kernels: Native) -> None:
        super().__init__(layers)
        self._kernels = kernels
        native = [layer for layer in self.layers if isinstance(layer, NativeLayer)]
        described = [struct for layer in native if (struct := layer.describe()) is not None]
        attends = any(isinstance(layer, FusedLayer) for layer in native)
        whole = len(described) == len(self.layers) and attends
        self._structs = (LayerStruct * len(described))(*described) if whole else None
        self._with_states = any(isinstance(layer, DeltaLayer) for layer in native)
        # The caches and the pools of states that the last step had, and as the native call takes them.
        self._bound: tuple[Sequence[NativeCache], Sequence[torch.Tensor], Layers] | None = None

    def run(
        self, residual: torch.Tensor, factors: Sequence[Factors], rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Pending | None]:
        """As in the base class."""
        step = current()
        layers = self._bind(step) if step.adapters is None else None
        if layers is None:
            return super().run(residual, factors, rows)
        narrow = rows is not None and len(rows) < len(residual) and step.context.wanted_start is not None
        waves = [wave.native for wave in step.states.waves] if step.states is not None else []
        self._kernels.run_layers(layers, residual, factors, step.context, waves, narrow=narrow)
        if rows is None:
            return residual, None
        return residual[: len(rows)] if narrow else residual.index_select(0, rows), None

    def _bind(self, step: ActiveStep) -> Layers | None:
        """The layers with the step's caches and pools, if one native call can run all layers."""
        caches, pools = _native_caches(step), _pools(step)
        if self._structs is None or caches is None or (self._with_states and not pools):
            return None
        bound = self._bound
        if bound is None or bound[0] is not caches or bound[1] is not pools:
            left = iter(pools)
            rules = [layer.bound(left) if isinstance(layer, DeltaLayer) else None for layer in self.layers]
            used = [
                _native_cache(step, layer.layer_idx) if isinstance(layer, FusedLayer) else None
                for layer in self.layers
            ]
            bound = self._bound = (
                caches,
                pools,
                Layers.of(self._structs, used, rules, slots=min(map(len, pools), default=0)),
            )
        return bound[2]


def _native_cache(step: ActiveStep, layer: int) -> NativeCache | None:
    """The cache of the layer with this number, if our functions can use it."""
    caches, backend = _native_caches(step), step.backend
    if caches is None:
        return None
    return caches[backend.place_of(layer) if isinstance(backend, Numbered) else layer]


def _native_caches(step: ActiveStep) -> tuple[NativeCache, ...] | None:
    """The caches of all layers that attend, if our functions can use them; the same object in each step."""
    backend = step.backend.backend if isinstance(step.backend, Numbered) else step.backend
    return backend.native_caches if isinstance(backend, CpuAttention) else None


def _pools(step: ActiveStep) -> Sequence[torch.Tensor]:
    """The pools of all states, in the order of functions; none for a step without states."""
    return step.states.pools if isinstance(step.states, StepStates) else ()
