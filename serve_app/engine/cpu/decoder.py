"""Llama-shaped decoder layers on the native functions: one call for all of them, or a few for each.

A stack of fused layers takes the place of the model's layers. Where the cache is
native and our kernels do all products, a step is a single native call; elsewhere (dry
runs, other backends, products by oneDNN, rows with adapters) it goes layer by layer,
with the same results. Activations are float32. Knows neither batches nor cache layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.activations import GELUTanh

from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.kernels.native import Layers, Native, NativeCache
from serve_app.engine.kernels.structs import LANES, LayerStruct
from serve_app.engine.linear.packed import Pack, PackedLinear
from serve_app.engine.model.forward import ActiveStep, current
from serve_app.engine.model.lora import Site


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What the original layer asks of attention, seen by calling it once."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


class FusedLayer(nn.Module):
    """One pre-norm decoder layer: attention with rotary positions, then a gated MLP."""

    def __init__(
        self, layer: Any, call: AttentionCall, kernels: Native, pack: Pack = PackedLinear.of
    ) -> None:
        """`pack` makes the linears."""
        super().__init__()
        self._kernels = kernels
        attention, mlp = layer.self_attn, layer.mlp
        self.layer_idx: int = attention.layer_idx
        self._head_dim: int = attention.head_dim
        self._heads: int = attention.q_proj.out_features // self._head_dim
        self._kv_heads: int = attention.k_proj.out_features // self._head_dim
        self._call = call
        self._qkv = pack(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = pack(attention.o_proj)
        self._gate_up = pack(mlp.gate_proj, mlp.up_proj)
        self._down = pack(mlp.down_proj)
        self.sites: dict[nn.Module, Site] = {
            self._qkv: self._site(attention, "q_proj", "k_proj", "v_proj"),
            self._out: self._site(attention, "o_proj"),
            self._gate_up: self._site(mlp, "gate_proj", "up_proj"),
            self._down: self._site(mlp, "down_proj"),
        }
        self._gelu = type(mlp.act_fn) is GELUTanh
        self._norm_in, self._eps = norm_of(layer.input_layernorm)
        self._norm_mid, self._eps_mid = norm_of(layer.post_attention_layernorm)
        self._norms: tuple[torch.Tensor, torch.Tensor] | None = None
        self._eps_head = 0.0
        if hasattr(attention, "q_norm"):
            (q_norm, self._eps_head), (k_norm, _) = norm_of(attention.q_norm), norm_of(attention.k_norm)
            self._norms = q_norm, k_norm

    def describe(self) -> LayerStruct | None:
        """The layer for a native call over many, valid as long as this module; None where that cannot be."""
        linears = [linear.describe() for linear in (self._qkv, self._out, self._gate_up, self._down)]
        call = self._call
        if None in linears or self._down.in_features % LANES or call.sinks is not None:
            return None
        qkv, out, gate_up, down = linears
        q_norm, k_norm = (norm.data_ptr() for norm in self._norms) if self._norms else (None, None)
        return LayerStruct(
            qkv=qkv,
            out=out,
            gate_up=gate_up,
            down=down,
            norm_in=self._norm_in.data_ptr(),
            norm_mid=self._norm_mid.data_ptr(),
            q_norm=q_norm,
            k_norm=k_norm,
            heads=self._heads,
            window=call.window or 0,
            gelu=self._gelu,
            eps_in=self._eps,
            eps_mid=self._eps_mid,
            eps_head=self._eps_head,
            scale=call.scale,
            softcap=call.softcap or 0.0,
        )

    def forward(self, residual: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """residual [T, N] float32, updated in place; cos and sin [T, D / 2] float32."""
        kernels = self._kernels
        qkv = self._project(self._qkv, kernels.add_rmsnorm(residual, None, self._norm_in, self._eps))
        delta = self._project(self._out, self._attend(qkv, cos, sin).flatten(1))
        hidden = kernels.add_rmsnorm(residual, delta, self._norm_mid, self._eps_mid)
        gated = kernels.gated(self._project(self._gate_up, hidden), self._gelu)
        residual += self._project(self._down, gated)

    def _project(self, linear: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        """[T, K] -> [T, N], with what the step's adapters add."""
        out = linear.project(x)
        adapters = current().adapters
        if adapters is not None:
            adapters.add(self.sites[linear], x, out)
        return out

    def _site(self, parent: Any, *names: str) -> Site:
        linears = {name: getattr(parent, name) for name in names}
        widths = {name: linear.out_features for name, linear in linears.items()}
        return Site(self.layer_idx, linears[names[0]].in_features, widths)

    def _attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [T, H, D], all float32."""
        step, call, kernels = current(), self._call, self._kernels
        heads = qkv.view(len(qkv), -1, self._head_dim)
        caches = _native_caches(step)
        if caches is not None:
            cache = caches[self.layer_idx]
            kernels.rope_and_cache(
                *(qkv, cos, sin, self._norms, self._eps_head, cache, step.context.slots, self._heads)
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
        query, key, value = torch.split(heads, [self._heads, self._kv_heads, self._kv_heads], dim=1)
        if self._norms is not None:
            query, key = (
                x * (x.square().mean(-1, keepdim=True) + self._eps_head).rsqrt() * weight
                for x, weight in zip((query, key), self._norms, strict=True)
            )
        return step.backend.forward(
            self.layer_idx,
            _rotate(query, cos, sin),
            _rotate(key, cos, sin),
            value,
            step.context,
            scale=call.scale,
            window=call.window,
            softcap=call.softcap,
            sinks=call.sinks,
        )


class FusedStack(nn.Module):
    """Takes the place of all decoder layers, as if they were one. `layers`: of FusedLayer."""

    def __init__(self, layers: Iterable[nn.Module], kernels: Native) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._kernels = kernels
        described = [struct for layer in self._fused() if (struct := layer.describe()) is not None]
        whole = len(described) == len(self.layers)
        self._structs = (LayerStruct * len(described))(*described) if whole else None
        # The caches of the backend that ran last, and as the native call takes them.
        self._bound: tuple[tuple[NativeCache, ...], Layers] | None = None

    def forward(
        self,
        hidden_states: torch.Tensor,  # [1, T, N]
        position_embeddings: tuple[torch.Tensor, torch.Tensor],  # cos, sin: [1, T, D], halves alike
        **_: Any,
    ) -> torch.Tensor:
        """[1, T, N] float32."""
        residual = hidden_states[0].to(torch.float32, copy=True).contiguous()
        cos, sin = (
            factor[0, :, : factor.shape[-1] // 2].float().contiguous() for factor in position_embeddings
        )
        self.run(residual, cos, sin)
        return residual[None]

    def run(self, residual: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """residual [T, N] float32, updated in place; cos and sin [T, D / 2] float32."""
        step = current()
        layers = self._bind(step) if step.adapters is None else None
        if layers is not None:
            self._kernels.run_layers(layers, residual, cos, sin, step.context)
        else:
            for layer in self._fused():
                layer(residual, cos, sin)

    def sites(self) -> Iterator[Site]:
        """What adapters can change."""
        for layer in self._fused():
            yield from layer.sites.values()

    def _bind(self, step: ActiveStep) -> Layers | None:
        """The layers with the step's caches, if one native call can run them."""
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


def _native_caches(step: ActiveStep) -> tuple[NativeCache, ...] | None:
    return step.backend.native_caches if isinstance(step.backend, CpuAttention) else None


def norm_of(norm: Any) -> tuple[torch.Tensor, float]:
    """Weight in float32 and epsilon."""
    return norm.weight.detach().float().contiguous(), float(norm.variance_epsilon)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, H, D], the factors [T, D / 2]."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
