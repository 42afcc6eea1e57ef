"""Decoder layers on the native functions: one call for all layers together, or a few calls for each layer.

A stack of fused layers takes the place of the model's layers. If the cache is native and our kernels compute
all products, a step is a single native call. Otherwise (dry runs, other backends, products by oneDNN, rows
with adapters) the step runs layer by layer, with the same results. Activations are float32. Depends on
neither batches nor cache layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.attention.numbering import Numbered
from serve_app.engine.experts.block import NativeBlock
from serve_app.engine.fused.layer import AttentionLayer, DecoderStack
from serve_app.engine.fused.rotary import Factors
from serve_app.engine.kernels.layers import Layers, NativeCache
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import LANES, LayerStruct, LinearStruct, NormStruct
from serve_app.engine.model.forward import ActiveStep, current
from serve_app.engine.norm import Pending


class FusedLayer(AttentionLayer[Native]):
    """A decoder layer on the native functions. Activations between its linears are float32."""

    def describe(self) -> LayerStruct | None:
        """The layer's struct for a native call over many layers, valid as long as this module lives; None if
        the layer has none."""
        call = self._call
        if any(self._totals):  # ranks add up between its calls
            return None
        if self._gated or call.sinks is not None:
            return None
        qkv, out, feed_forward = self._qkv.describe(), self._out.describe(), self._describe_feed_forward()
        if qkv is None or out is None or feed_forward is None:
            return None
        q_norm, k_norm = (norm.data_ptr() for norm in self._norms) if self._norms else (None, None)
        return LayerStruct(
            qkv=qkv,
            out=out,
            **feed_forward,
            norm_in=NormStruct.of(self._before_attention),
            norm_attended=NormStruct.of(self._after_attention),
            norm_mid=NormStruct.of(self._before_mlp),
            norm_gated=NormStruct.of(self._after_mlp),
            q_norm=q_norm,
            k_norm=k_norm,
            heads=self._heads,
            window=call.window or 0,
            whole=self._whole,
            parallel=self._parallel,
            rotary=self._rotary.kind,
            eps_head=self._eps_head,
            scale=call.scale,
            softcap=call.softcap or 0.0,
            added=self._added,
        )

    def _describe_feed_forward(self) -> dict[str, Any] | None:
        """The fields of the MLP, or of the experts; None if no native call over many layers computes them."""
        if self.mixture is not None:
            block = self.mixture.block
            if not isinstance(block, NativeBlock) or self._parallel:
                return None
            none = LinearStruct.none()
            return {"gate_up": none, "down": none, "gelu": False, "mixture": block.native.address}
        gate_up, down = self._gate_up.describe(), self._down.describe()
        if gate_up is None or down is None or self._down.in_features % LANES:
            return None
        return {"gate_up": gate_up, "down": down, "gelu": self._gelu, "mixture": None}

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
    """Runs all layers by one native call if that is possible. `layers`: of FusedLayer."""

    def __init__(self, layers: Iterable[nn.Module], kernels: Native) -> None:
        super().__init__(layers)
        self._kernels = kernels
        attending = [layer for layer in self.layers if isinstance(layer, FusedLayer)]
        described = [struct for layer in attending if (struct := layer.describe()) is not None]
        whole = len(described) == len(self.layers)
        self._structs = (LayerStruct * len(described))(*described) if whole else None
        # The caches of the backend that ran last, and as the native call takes them.
        self._bound: tuple[tuple[NativeCache, ...], Layers] | None = None

    def run(
        self, residual: torch.Tensor, factors: Sequence[Factors], rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Pending | None]:
        """As in the base class."""
        step = current()
        layers = self._bind(step) if step.adapters is None else None
        if layers is None:
            return super().run(residual, factors, rows)
        narrow = rows is not None and len(rows) < len(residual) and step.context.wanted_start is not None
        self._kernels.run_layers(layers, residual, factors, step.context, narrow=narrow)
        if rows is None:
            return residual, None
        return residual[: len(rows)] if narrow else residual.index_select(0, rows), None

    def _bind(self, step: ActiveStep) -> Layers | None:
        """The layers with the step's caches, if one native call can run all layers."""
        caches = _native_caches(step)
        if self._structs is None or caches is None:
            return None
        bound = self._bound
        if bound is None or bound[0] is not caches:
            used = tuple(caches[layer.layer_idx] for layer in self._fused())
            bound = self._bound = caches, Layers.of(self._structs, used)
        return bound[1]

    def _fused(self) -> Iterator[FusedLayer]:
        return iter(self.layers)  # type: ignore[arg-type]


def _native_cache(step: ActiveStep, layer: int) -> NativeCache | None:
    """The cache of the layer with this number, if our functions can use it."""
    backend = step.backend
    if isinstance(backend, Numbered):
        layer, backend = backend.place_of(layer), backend.backend
    caches = backend.native_caches if isinstance(backend, CpuAttention) else None
    return None if caches is None else caches[layer]


def _native_caches(step: ActiveStep) -> tuple[NativeCache, ...] | None:
    return step.backend.native_caches if isinstance(step.backend, CpuAttention) else None
