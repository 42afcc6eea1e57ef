"""Decoder layers on a GPU: dense products, kernels in Triton between them."""

from __future__ import annotations

import torch

from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.cuda.launch import TritonKernels
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.fused.layer import DecoderLayer
from serve_app.engine.model.forward import current


class TritonLayer(DecoderLayer[TritonKernels]):
    """A decoder layer on the Triton kernels. Activations between its linears are of the weights' type."""

    def _attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [T, H, D]."""
        step = current()
        if not isinstance(step.backend, TritonAttention):
            return self._attend_by_backend(qkv, cos, sin)
        query = self._rotate_and_keep(step.backend, qkv, cos, sin)
        return self._attend_cached(step.backend, query, step.context)

    def _attend_last(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """[T, (H + 2 Hkv) D] -> [R, H, D], of the wanted rows."""
        step = current()
        if not isinstance(step.backend, TritonAttention) or step.context.wanted_start is None:
            return super()._attend_last(qkv, cos, sin, rows)
        query = self._rotate_and_keep(step.backend, qkv, cos, sin)
        return self._attend_cached(step.backend, query.index_select(0, rows), step.context.of_wanted())

    def _rotate_and_keep(
        self, backend: TritonAttention, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """The queries [T, H, D]; keys and values go to the cache."""
        pools, slots = backend.pools(self.layer_idx), current().context.slots
        norms = self._norms
        if norms is not None and self._whole:
            of_queries, of_keys = norms
            self._kernels.normalise_part(qkv, 0, of_queries, self._eps_head)
            self._kernels.normalise_part(qkv, len(of_queries), of_keys, self._eps_head)
            norms = None
        return self._kernels.rope_and_cache(qkv, cos, sin, norms, self._eps_head, pools, slots)

    def _attend_cached(
        self, backend: TritonAttention, query: torch.Tensor, context: ForwardContext
    ) -> torch.Tensor:
        """[T, H, D] -> [T, H, D], with keys and values that are in the cache."""
        call = self._call
        return backend.attend(
            self.layer_idx,
            query,
            context,
            scale=call.scale,
            window=call.window,
            softcap=call.softcap,
            sinks=call.sinks,
        )
