"""The structure that fused layers have on every device; a device brings linears, kernels and attention.

One residual of float32 runs through all layers. What a layer adds to it is left pending, so that
the next norm adds it. Knows neither batches nor cache layouts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn
from transformers.activations import GELUTanh

from serve_app.engine.model.forward import current
from serve_app.engine.model.lora import Site
from serve_app.engine.weights.packed_linear import Pack, PackedLinear


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """The original layer's call of attention, recorded by calling it once."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


class LayerKernels(Protocol):
    """A device's kernels between linears and attention."""

    def add_rmsnorm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """residual [T, N] float32 += delta [T, N], in place. Returns RMSNorm(residual) * weight [N].

        `weight` is float32; the result is of the type that linears take.
        """
        ...

    def gated(self, gate_up: torch.Tensor, gelu: bool = False) -> torch.Tensor:
        """[T, 2 I] -> [T, I]: the activation of the first half, times the second half."""
        ...


KernelsT = TypeVar("KernelsT", bound=LayerKernels)


class DecoderLayer(nn.Module, Generic[KernelsT]):
    """One pre-norm decoder layer: attention with rotary positions, then a gated MLP."""

    def __init__(self, layer: Any, call: AttentionCall, kernels: KernelsT, pack: Pack) -> None:
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

    def forward(
        self, residual: torch.Tensor, delta: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Adds `delta` [T, N] to residual [T, N] float32, in place; returns the delta of this layer.

        cos and sin: [T, D / 2] float32.
        """
        normed = self._kernels.add_rmsnorm(residual, delta, self._norm_in, self._eps)
        return self._finish(residual, self._attend(self._project(self._qkv, normed), cos, sin))

    def last(
        self,
        residual: torch.Tensor,
        delta: torch.Tensor | None,
        cos: torch.Tensor,
        sin: torch.Tensor,
        rows: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `forward`, where of this layer's outputs only `rows` [R] are wanted; keys and values are of all.

        `rows` are those that the step's context calls wanted. No row has an adapter. Returns their residual,
        and what is still to be added to it.
        """
        normed = self._kernels.add_rmsnorm(residual, delta, self._norm_in, self._eps)
        heads = self._attend_last(self._project(self._qkv, normed), cos, sin, rows)
        residual = residual.index_select(0, rows)
        return residual, self._finish(residual, heads)

    def _finish(self, residual: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        """The part of the layer after attention. heads: [T, H, D]."""
        kernels = self._kernels
        delta = self._project(self._out, heads.flatten(1))
        hidden = kernels.add_rmsnorm(residual, delta, self._norm_mid, self._eps_mid)
        gated = kernels.gated(self._project(self._gate_up, hidden), self._gelu)
        return self._project(self._down, gated)

    @abstractmethod
    def _attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [T, H, D]."""

    def _attend_last(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [R, H, D], of the wanted rows."""
        return self._attend(qkv, cos, sin).index_select(0, rows)

    def _attend_by_backend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """The same with plain torch before any attention backend."""
        step, call = current(), self._call
        heads = qkv.view(len(qkv), -1, self._head_dim)
        query, key, value = torch.split(heads, [self._heads, self._kv_heads, self._kv_heads], dim=1)
        query, key = query.float(), key.float()
        if self._norms is not None:
            query, key = (
                x * (x.square().mean(-1, keepdim=True) + self._eps_head).rsqrt() * weight
                for x, weight in zip((query, key), self._norms, strict=True)
            )
        return step.backend.forward(
            self.layer_idx,
            _rotate(query, cos, sin).to(qkv.dtype),
            _rotate(key, cos, sin).to(qkv.dtype),
            value,
            step.context,
            scale=call.scale,
            window=call.window,
            softcap=call.softcap,
            sinks=call.sinks,
        )

    def _project(self, linear: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        """[T, K] -> [T, N], with the products of the step's adapters."""
        out = linear.project(x)
        adapters = current().adapters
        if adapters is not None:
            adapters.add(self.sites[linear], x, out)
        return out

    def _site(self, parent: Any, *names: str) -> Site:
        linears = {name: getattr(parent, name) for name in names}
        widths = {name: linear.out_features for name, linear in linears.items()}
        return Site(self.layer_idx, linears[names[0]].in_features, widths)


class DecoderStack(nn.Module):
    """Takes the place of all decoder layers, as if they were one. `layers`: of DecoderLayer."""

    def __init__(self, layers: Iterable[nn.Module], out_dtype: torch.dtype | None = None) -> None:
        """`out_dtype` is what transformers gets from `forward`; None: the type of its own input."""
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._out_dtype = out_dtype

    def forward(
        self,
        hidden_states: torch.Tensor,  # [1, T, N]
        position_embeddings: tuple[torch.Tensor, torch.Tensor],  # cos, sin: [1, T, D], halves alike
        **_: Any,
    ) -> torch.Tensor:
        """[1, T, N]. What transformers calls where it runs its own forward around the layers."""
        residual = hidden_states[0].to(torch.float32, copy=True).contiguous()
        cos, sin = (
            factor[0, :, : factor.shape[-1] // 2].float().contiguous() for factor in position_embeddings
        )
        residual, delta = self.run(residual, cos, sin)
        if delta is not None:
            residual += delta
        return residual[None].to(self._out_dtype or hidden_states.dtype)

    def run(
        self, residual: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """residual [T, N] float32, which it may change; cos and sin [T, D / 2] float32.

        Returns the residual of `rows` [R], which are those that the step wants, or of all; and what is still
        to be added to it, None: nothing.
        """
        delta = None
        narrow = rows is not None and len(rows) < len(residual) and current().adapters is None
        for layer in self.layers:
            if narrow and layer is self.layers[-1]:
                return layer.last(residual, delta, cos, sin, rows)  # type: ignore[operator, no-any-return]
            delta = layer(residual, delta, cos, sin)
        if rows is None or delta is None:
            return residual, delta
        return residual.index_select(0, rows), delta.index_select(0, rows)

    def sites(self) -> Iterator[Site]:
        """The linears that adapters can change."""
        for layer in self.layers:
            yield from layer.sites.values()  # type: ignore[operator]


def norm_of(norm: Any) -> tuple[torch.Tensor, float]:
    """Weight in float32 and epsilon."""
    return norm.weight.detach().float().contiguous(), float(norm.variance_epsilon)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, H, D], the factors [T, D / 2]."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
