"""The device-independent structure of fused layers; a device provides linears, kernels and attention.

All layers share one residual, in float32. A layer does not add its own output to the residual, but leaves the
output pending, and the next norm adds it. Depends on neither batches nor cache layouts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import nn
from transformers.activations import GELUTanh

from serve_app.engine.exact import sigmoid
from serve_app.engine.fused.families import Family, HeadNorms, NormForm
from serve_app.engine.fused.mixture import Mixture
from serve_app.engine.fused.rotary import Factors, Rotary, turn
from serve_app.engine.model.forward import current
from serve_app.engine.model.lora import ATTENTION, MLP, MODULES, Site
from serve_app.engine.model.sums import SpreadNorm, spread, total_of
from serve_app.engine.norm import Norm, Pending
from serve_app.engine.weights.packed_linear import Pack, PackedLinear


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """How the original layer calls attention, recorded by calling the layer once."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


class LayerKernels(Protocol):
    """A device's kernels for the operations between linears and attention."""

    def add_norm(self, residual: torch.Tensor, pending: Pending | None, norm: Norm | None) -> torch.Tensor:
        """Adds `pending` to residual [T, N] in place. Returns norm(residual), or a copy if `norm` is None.

        The result is of the type that linears take.
        """
        ...

    def gated(self, gate_up: torch.Tensor, gelu: bool = False) -> torch.Tensor:
        """[T, 2 I] -> [T, I]: the activation of the first half, times the second half."""
        ...


KernelsT = TypeVar("KernelsT", bound=LayerKernels)


class DecoderLayer(nn.Module, Generic[KernelsT]):
    """A decoder layer as its family declares it: a part that mixes tokens, then a gated MLP or experts."""

    layer_idx: int

    def __init__(
        self,
        layer: Any,
        mixer: Any,
        out: str,
        family: Family,
        kernels: KernelsT,
        pack: Pack,
        mixture: Mixture | None = None,
    ) -> None:
        """`mixer`: the part of `layer` that mixes tokens. `out`: the name of its last linear.

        `mixture`: in place of an MLP with experts, whose outputs are whole.
        """
        super().__init__()
        self._kernels, self.layer_idx = kernels, mixer.layer_idx
        self.sites: dict[nn.Module, Site] = {}
        mlp = layer.mlp
        self._out = self._linear(pack, mixer, (out,))
        self._totals = total_of(mixer), None if mixture is not None else total_of(mlp)
        self.mixture = mixture
        if mixture is None:
            widths = dict.fromkeys(MLP, mlp.down_proj.in_features)
            self._gate_up = self._linear(pack, mlp, family.gate_up, widths)
            self._down = self._linear(pack, mlp, ("down_proj",))
            self._gelu = type(getattr(mlp, family.activation)) is GELUTanh
        self._parallel = family.parallel
        self._added = 1.0 if mixture is not None else family.added(mlp.config)
        self._before_attention, self._after_attention, self._before_mlp, self._after_mlp = (
            None if name is None else norm_of(getattr(layer, name), family)
            for name in (family.before_attention, family.after_attention, family.before_mlp, family.after_mlp)
        )

    def forward(self, residual: torch.Tensor, pending: Pending | None, factors: Sequence[Factors]) -> Pending:
        """Adds `pending` to residual [T, N] in place; returns what is still to be added for this layer.

        `factors` by kind.
        """
        normed = self._kernels.add_norm(residual, pending, self._before_attention)
        return self._finish(residual, normed, self._mix(normed, factors))

    def last(
        self, residual: torch.Tensor, pending: Pending | None, factors: Sequence[Factors], rows: torch.Tensor
    ) -> tuple[torch.Tensor, Pending]:
        """As `forward`, but with outputs for `rows` [R] only. Keys and values are still written for all rows.

        The step's context must mark `rows` as wanted. No row may have an adapter. Returns the residual of
        `rows`, and what is still to be added to it.
        """
        normed = self._kernels.add_norm(residual, pending, self._before_attention)
        mixed = self._mix(normed, factors, rows)
        residual, normed = residual.index_select(0, rows), normed.index_select(0, rows)
        return residual, self._finish(residual, normed, mixed)

    @abstractmethod
    def _mix(
        self, normed: torch.Tensor, factors: Sequence[Factors], rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[T, N] -> [R, H, D] of `rows`, or of all rows: what the tokens get from those before them."""

    def _finish(self, residual: torch.Tensor, normed: torch.Tensor, heads: torch.Tensor) -> Pending:
        """Compute the rest of the layer from `heads` [T, H, D], the output of `_mix`; `normed` [T, N] is its
        input."""
        of_mixer, of_mlp = self._totals
        mixed = self._project(self._out, heads.flatten(1))
        attended = Pending(mixed if of_mixer is None else of_mixer(mixed), self._after_attention, self._added)
        middle = self._kernels.add_norm(residual, attended, self._before_mlp)
        made = self._feed_forward(normed if self._parallel else middle)
        return Pending(made if of_mlp is None else of_mlp(made), self._after_mlp, self._added)

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, N] -> [T, N]: the MLP, or the experts."""
        if self.mixture is not None:
            return self.mixture(x)  # type: ignore[no-any-return]
        gated = self._kernels.gated(self._project(self._gate_up, x), self._gelu)
        return self._project(self._down, gated)

    def _project(self, linear: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        """[T, K] -> [T, N], with the products of the step's adapters."""
        out = linear.project(x)
        adapters, site = current().adapters, self.sites.get(linear)
        if adapters is not None and site is not None:
            adapters.add(site, x, out)
        return out

    def _linear(
        self,
        pack: Pack,
        parent: Any,
        names: tuple[str, ...],
        widths: dict[str, int] | None = None,
        rows: torch.Tensor | None = None,
    ) -> PackedLinear:
        """The linears of these names side by side, with outputs in the order of `rows`; records a site if
        adapters know the names.

        `widths`: the output width of each module that adapters can name; None if there is only one name.
        """
        made = pack(*(getattr(parent, name) for name in names), rows=rows)
        widths = widths or {names[0]: made.out_features}
        if widths.keys() <= set(MODULES):
            self.sites[made] = Site(self.layer_idx, made.in_features, widths, rows)
        return made


class AttentionLayer(DecoderLayer[KernelsT]):
    """A layer that attends, with rotary positions."""

    def __init__(
        self,
        layer: Any,
        family: Family,
        call: AttentionCall,
        rotary: Rotary,
        kernels: KernelsT,
        pack: Pack,
        mixture: Mixture | None = None,
    ) -> None:
        attention = layer.self_attn
        super().__init__(layer, attention, "o_proj", family, kernels, pack, mixture)
        self._call, self._rotary = call, rotary
        if call.sinks is not None:  # `call` may be another layer's, and each layer has its own
            self._call = replace(call, sinks=attention.sinks.detach().float())
        self._head_dim: int = attention.head_dim
        self._heads: int = attention.o_proj.in_features // self._head_dim
        self._kv_heads: int = attention.config.num_key_value_heads
        self._gated = family.output_gate
        q, k = (count * self._head_dim for count in (self._heads, self._kv_heads))
        rows = _rows_of(rotary.order, self._head_dim, self._heads, self._kv_heads, self._gated)
        widths = dict(zip(ATTENTION, (2 * q if self._gated else q, k, k), strict=True))
        self._qkv = self._linear(pack, attention, family.qkv, widths, rows)
        self._whole = False  # whether each norm is over all heads as one row
        self._norms: tuple[torch.Tensor, torch.Tensor] | None = None  # of queries and keys
        self._spread: list[tuple[SpreadNorm, torch.Tensor]] = []  # the same over the heads of several ranks
        self._eps_head = 0.0
        if family.head_norms is not HeadNorms.NONE:
            of_queries, of_keys = norm_of(attention.q_norm, family), norm_of(attention.k_norm, family)
            weights = rotary.ordered(of_queries.weight), rotary.ordered(of_keys.weight)
            norms = [each for each in map(spread, (attention.q_norm, attention.k_norm)) if each is not None]
            self._spread = list(zip(norms, weights, strict=False))
            if not norms:
                self._norms, self._whole = weights, family.head_norms is HeadNorms.WHOLE
            self._eps_head = of_queries.eps

    def _mix(
        self, normed: torch.Tensor, factors: Sequence[Factors], rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        qkv, (cos, sin) = self._project(self._qkv, normed), factors[self._rotary.kind]
        gates = None
        if self._gated:
            q, width = self._heads * self._head_dim, qkv.shape[1]
            query, gates, others = torch.split(qkv, [q, q, width - 2 * q], dim=1)
            qkv = torch.cat([query, others], dim=1)
        if self._spread:
            qkv = self._normalised(qkv)
        heads = self._attend(qkv, cos, sin) if rows is None else self._attend_last(qkv, cos, sin, rows)
        if gates is None:
            return heads
        return self._gate(heads, gates if rows is None else gates.index_select(0, rows))

    def _gate(self, heads: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """heads [T, H, D] times the sigmoid of gates [T, H * D]."""
        return heads * sigmoid(gates).view(heads.shape)

    def _normalised(self, qkv: torch.Tensor) -> torch.Tensor:
        """[T, (H + 2 Hkv) D], of which queries and keys are normalised over the heads of several ranks."""
        widths = [len(weight) for _, weight in self._spread]
        *parts, value = torch.split(qkv, [*widths, qkv.shape[1] - sum(widths)], dim=1)
        normed = [
            (norm.normalised(x.float()) * weight).to(qkv.dtype)
            for x, (norm, weight) in zip(parts, self._spread, strict=True)
        ]
        return torch.cat([*normed, value], dim=1)

    @abstractmethod
    def _attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [T, H, D]."""

    def _attend_last(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [R, H, D], of the wanted rows."""
        return self._attend(qkv, cos, sin).index_select(0, rows)

    def _attend_by_backend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """As `_attend`, with norms and rotation in plain torch, and any attention backend."""
        step, call = current(), self._call
        heads = qkv.view(len(qkv), -1, self._head_dim)
        query, key, value = torch.split(heads, [self._heads, self._kv_heads, self._kv_heads], dim=1)
        query, key = query.float(), key.float()
        if self._norms is not None:
            query, key = (
                Norm(weight, self._eps_head)(x.flatten(1) if self._whole else x).view(x.shape)
                for x, weight in zip((query, key), self._norms, strict=True)
            )
        return step.backend.forward(
            self.layer_idx,
            turn(query, cos, sin).to(qkv.dtype),
            turn(key, cos, sin).to(qkv.dtype),
            value,
            step.context,
            scale=call.scale,
            window=call.window,
            softcap=call.softcap,
            sinks=call.sinks,
        )


class DecoderStack(nn.Module):
    """Takes the place of all decoder layers, as if they were one. `layers`: of DecoderLayer."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def run(
        self, residual: torch.Tensor, factors: Sequence[Factors], rows: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Pending | None]:
        """residual [T, N] float32, which may be changed in place. `factors` by kind.

        Returns the residual of `rows` [R], the rows that the step wants; if it wants no particular rows, of
        all rows. The second value returned is what is still to be added to the residual; None if there is
        nothing.
        """
        pending: Pending | None = None
        narrow = rows is not None and len(rows) < len(residual) and current().adapters is None
        for layer in self.layers:
            if narrow and layer is self.layers[-1]:
                return layer.last(residual, pending, factors, rows)  # type: ignore[operator, no-any-return]
            pending = layer(residual, pending, factors)
        if rows is None or pending is None:
            return residual, pending
        return residual.index_select(0, rows), replace(pending, delta=pending.delta.index_select(0, rows))

    def sites(self) -> Iterator[Site]:
        """The linears that adapters can change, without those of mixtures."""
        for layer in self.layers:
            yield from layer.sites.values()  # type: ignore[operator]

    def mixtures(self) -> Iterator[tuple[int, nn.Module]]:
        """The mixtures of layers, with the layers' numbers."""
        for index, layer in enumerate(self.layers):
            if isinstance(layer.mixture, nn.Module):
                yield index, layer.mixture


def norm_of(norm: Any, family: Family) -> Norm:
    """A norm of a model, converted to the form that kernels use."""
    weight = norm.weight.detach().float()
    if family.norm is NormForm.ONE_PLUS_WEIGHT:
        weight = weight + 1
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    return Norm(weight.contiguous(), float(eps), family.norm is NormForm.LAYER)


def _rows_of(
    order: torch.Tensor | None, dim: int, heads: int, kv_heads: int, gated: bool
) -> torch.Tensor | None:
    """The order of the rows of queries, keys and values, if the heads of queries and keys are ordered by
    `order` [D]. If `gated`, queries and gates are in turn by heads, and the gates become the last rows of
    queries. None: the rows are in order."""
    if order is None and not gated:
        return None
    order = torch.arange(dim) if order is None else order
    starts = torch.arange(heads)[:, None] * dim * (2 if gated else 1)
    parts = [starts + order, *([starts + dim + torch.arange(dim)] if gated else [])]
    end = sum(part.numel() for part in parts)
    parts.append(end + torch.arange(kv_heads)[:, None] * dim + order)
    parts.append(end + kv_heads * dim + torch.arange(kv_heads * dim)[None])
    return torch.cat([part.flatten() for part in parts])
