"""Decoder layers on the native functions: each describes itself for one call over all layers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from serve_app.engine.experts.block import NativeBlock
from serve_app.engine.fused.layer import DecoderLayer
from serve_app.engine.kernels.native import Native
from serve_app.engine.kernels.structs import LANES, LayerStruct, LinearStruct, NormStruct


class NativeLayer(DecoderLayer[Native]):
    """Activations between its linears are float32."""

    def describe(self) -> LayerStruct | None:
        """The layer's struct for a native call over many layers, valid as long as this module lives; None if
        the layer has none."""
        if any(self._totals):  # ranks add up between its calls
            return None
        mixing, out = self._describe_mixing(), self._out.describe()
        feed_forward = self._describe_feed_forward()
        if mixing is None or out is None or feed_forward is None:
            return None
        return LayerStruct(
            out=out,
            **mixing,
            **feed_forward,
            norm_in=NormStruct.of(self._before_attention),
            norm_attended=NormStruct.of(self._after_attention),
            norm_mid=NormStruct.of(self._before_mlp),
            norm_gated=NormStruct.of(self._after_mlp),
            parallel=self._parallel,
            added=self._added,
        )

    @abstractmethod
    def _describe_mixing(self) -> dict[str, Any] | None:
        """The fields of the part that mixes tokens; None if no native call over many layers computes it."""

    def _describe_feed_forward(self) -> dict[str, Any] | None:
        """The fields of the MLP, or of the experts; None as above."""
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
