"""A decoder layer with a gated delta rule on the native functions: one call between its linears."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from serve_app.engine.cpu.native_layer import NativeLayer
from serve_app.engine.fused.families import Family
from serve_app.engine.fused.mixture import Mixture
from serve_app.engine.fused.rotary import Factors
from serve_app.engine.kernels.delta import DeltaRule, DeltaWeights
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import DeltaStruct
from serve_app.engine.model.forward import current
from serve_app.engine.state import States, StateSpec
from serve_app.engine.state.pools import StepStates
from serve_app.engine.state.waves import Span, Wave
from serve_app.engine.weights.packed_linear import Pack

IN: Final = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")  # in the order of the native function


class DeltaLayer(NativeLayer):
    """The state of the convolution is float32 too."""

    def __init__(
        self, layer: Any, family: Family, kernels: Native, pack: Pack, mixture: Mixture | None = None
    ) -> None:
        mixer = getattr(layer, str(family.delta))
        super().__init__(layer, mixer, "out_proj", family, kernels, pack, mixture)
        self._in = self._linear(pack, mixer, IN, {name: getattr(mixer, name).out_features for name in IN})
        self._weights = DeltaWeights(
            factors=mixer.conv1d.weight.detach()[:, 0].float().T.contiguous(),
            rates=-mixer.A_log.detach().float().exp(),
            biases=mixer.dt_bias.detach().float(),
            norm=mixer.norm.weight.detach().float(),
            eps=float(mixer.norm.variance_epsilon),
            groups=mixer.num_k_heads,
            keys=mixer.head_k_dim,
        )
        (width, channels), heads = self._weights.factors.shape, self._weights.heads
        shapes = (width - 1, channels), (heads, self._weights.keys, self._weights.values)
        self._specs = [StateSpec(shape, torch.float32) for shape in shapes]

    def _mix(
        self, normed: torch.Tensor, factors: Sequence[Factors], rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        projected = self._project(self._in, normed)
        out = torch.zeros(len(normed), self._weights.heads, self._weights.values)
        states: States = current().states or self._of_one_sequence(len(normed))
        windows, matrices = (states.next(spec) for spec in self._specs)
        rule = DeltaRule(self._weights, projected, windows, matrices, out)
        for wave in states.waves:
            self._kernels.over_spans(rule, wave.native)
        return out if rows is None else out.index_select(0, rows)

    def bound(self, pools: Iterator[torch.Tensor]) -> DeltaStruct:
        """The rule with the next of a model's pools, which must live as long as the struct is used."""
        return self._weights.bound(next(pools), next(pools))

    def _describe_mixing(self) -> dict[str, Any] | None:
        """`Layers` gives the struct its rule."""
        projection = self._in.describe()
        if projection is None:
            return None
        none = dict.fromkeys(("heads", "window", "gated", "whole", "rotary"), 0)
        return {
            "qkv": projection,
            **dict.fromkeys(("q_norm", "k_norm", "delta")),
            **none,
            **dict.fromkeys(("eps_head", "scale", "softcap"), 0.0),
        }

    def _of_one_sequence(self, tokens: int) -> StepStates:
        """The states of a step without any: all rows are one sequence, from its first token on."""
        pools = [torch.zeros(2, *spec.shape) for spec in self._specs]
        return StepStates(pools, [Wave([Span(0, tokens, 0, 1)], torch.device("cpu"))], None)
