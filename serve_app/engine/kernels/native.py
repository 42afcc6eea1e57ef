"""The native functions as typed calls on tensors.

Every call checks type, contiguity and size, which C cannot check. For tensors that do not fit, it raises
ValueError. Activations are float32; weights and cache are bfloat16 or float32. ctypes releases the
interpreter lock during a call. The module does not depend on any model.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.kernels import compact
from serve_app.engine.kernels.arena import Arena
from serve_app.engine.kernels.checks import check, check_context
from serve_app.engine.kernels.compact import CompactWeight
from serve_app.engine.kernels.experts import NativeExperts, NativeMixture
from serve_app.engine.kernels.exports import declare
from serve_app.engine.kernels.grouped import OF_CODES, Codes, GroupedWeight, fits_codes
from serve_app.engine.kernels.heads import NativeHeads
from serve_app.engine.kernels.layers import Layers, NativeCache
from serve_app.engine.kernels.spans import SpanFunction, Spans
from serve_app.engine.kernels.step import Factors, run_layers
from serve_app.engine.kernels.structs import (
    TYPES,
    AttentionStruct,
    LinearStruct,
    NormStruct,
    Part,
    Preempted,
    Product,
    packed_size,
    quantized_size,
)
from serve_app.engine.kernels.touching import AT_ONCE_S, Touching
from serve_app.engine.norm import Norm, Pending


class Native:
    """The loaded library. Made by `kernels.native()`, which checks its results."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        declare(library)
        self._library = library
        self._arena = Arena()
        self.compact = bool(library.compact_is_fast())  # whether weights of bfloat16 are to be compact
        ranks = {product: library.product_rank(product) for product in Product}
        # The products that this machine has for weights of a type, the fastest first.
        self.products: dict[torch.dtype, tuple[Product, ...]] = {
            torch.float32: (Product.FLOATS,),
            torch.bfloat16: tuple(sorted(filter(ranks.get, ranks), key=ranks.__getitem__, reverse=True)),
        }

    @contextmanager
    def timed_parts(self) -> Iterator[ctypes.Array[ctypes.c_double]]:
        """In the context, `run_layers` adds each Part's seconds to the array. One thread may run layers."""
        seconds = (ctypes.c_double * len(Part))()
        self._library.time_parts(ctypes.addressof(seconds))
        try:
            yield seconds
        finally:
            self._library.time_parts(None)

    def tasks_taken_over(self) -> int:
        """The number of tasks that a second thread finished because the first one had lost its core."""
        return int(self._library.tasks_taken_over())

    def simulate_preemption(self, whom: Preempted) -> int:
        """For tests: let one thread at a time act as if it had lost its core, until called with `NOBODY`.

        Returns how many threads have acted so since the last call. Results stay the same.
        """
        return int(self._library.simulate_preemption(whom))

    def pack_weight(self, weight: torch.Tensor, *, lasting: bool = True) -> torch.Tensor:
        """[N, K] -> panels of sixteen rows, flat, padded with zeros.

        `lasting`: in huge pages. Else it is in memory of its own, which is freed with the tensor.
        """
        check(weight, *TYPES)
        n, k = weight.shape
        packed = self._empty(packed_size(n, k, weight.dtype), weight.dtype, lasting=lasting)
        wide = weight.dtype == torch.float32
        self._library.pack_weight(weight.data_ptr(), packed.data_ptr(), n, k, wide, torch.get_num_threads())
        return packed

    def pack_compact(self, weight: torch.Tensor, *, lasting: bool = True) -> CompactWeight | None:
        """[N, K] bfloat16 -> the same weights in twelve bits each; None if that would not be much smaller.

        `lasting`: as for `pack_weight`.
        """
        check(weight, torch.bfloat16)
        n, k = weight.shape
        codes, exceptions = compact.empty_codes(n)
        threads = torch.get_num_threads()
        self._library.choose_codes(
            *(weight.data_ptr(), codes.data_ptr(), exceptions.data_ptr(), n, k, threads)
        )
        size = compact.compact_size(n, k, exceptions)
        if size is None or size > compact.MOST_COMPACT * packed_size(n, k, weight.dtype) * weight.itemsize:
            return None
        data = self._empty(size, torch.uint8, lasting=lasting)
        compact.write_codes(data, codes, exceptions)
        self._library.pack_compact(weight.data_ptr(), data.data_ptr(), n, k, threads)
        return CompactWeight(data, n, k)

    def pack_quantized(self, weight: Codes, *, lasting: bool = True) -> torch.Tensor:
        """Bytes for the product `weight.product`. `lasting`: as for `pack_weight`."""
        if isinstance(weight, GroupedWeight):
            return weight.packed_into(self._empty(weight.num_bytes, torch.uint8, lasting=lasting))
        parts = weight.parts()
        n, k = weight.codes.shape
        packed = self._empty(quantized_size(n, k, weight.product), torch.uint8, lasting=lasting)
        pack = self._library.pack_int8 if weight.groups is None else self._library.pack_int4
        pack(*(part.data_ptr() for part in parts), packed.data_ptr(), n, k, torch.get_num_threads())
        return packed

    def touch(self, pieces: Sequence[torch.Tensor], *, at_once: int, seconds: float = AT_ONCE_S) -> Touching:
        """Make the system provide the memory of `pieces`, contiguous tensors, in parallel; see Touching."""
        return Touching(self._library, pieces, at_once=at_once, seconds=seconds)

    def _empty(self, size: int, dtype: torch.dtype, *, lasting: bool) -> torch.Tensor:
        return self._arena.empty(size, dtype) if lasting else torch.empty(size, dtype=dtype)

    def linear(
        self,
        x: torch.Tensor,  # [M, K] float32; K even, unless the weight is quantised
        packed: torch.Tensor | CompactWeight,  # from one of the functions above
        bias: torch.Tensor | None,  # float32, N rounded up to LANES
        features: int,  # N
        dtype: torch.dtype = torch.float32,
        product: Product | None = None,  # None: the fastest; of a quantised weight, its own
    ) -> torch.Tensor:
        """x W^T + b: [M, N] of `dtype`. A row's result does not depend on the other rows.

        With bfloat16 weights, PAIRS and TILES round x to bfloat16 first. Products of codes round x to int8.
        """
        check(x, torch.float32)
        m, k = x.shape
        out = torch.empty(m, features, dtype=dtype)
        if isinstance(packed, CompactWeight):
            compact, data, kind = packed, packed.data, torch.bfloat16
        else:
            compact, data, kind = None, packed, packed.dtype
        product = self.products[kind][0] if product is None else product
        if compact is not None:
            fits = product in self.products[kind] and k % 2 == 0 and compact.fits(features, k)
        elif product in OF_CODES:
            fits = fits_codes(data, features, k, product)
        else:
            fits = product in self.products.get(kind, ()) and k % 2 == 0
            fits = fits and data.numel() == packed_size(features, k, kind)
        if not fits or dtype not in TYPES:
            raise ValueError("the packed weight does not fit the input")
        struct = LinearStruct(
            weight=data.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            outputs=features,
            inputs=k,
            product=product,
            compact=compact is not None,
        )
        self._library.linear(
            *(ctypes.addressof(struct), x.data_ptr(), out.data_ptr(), m),
            dtype == torch.float32,
            torch.get_num_threads(),
        )
        return out

    def widen(self, x: torch.Tensor) -> torch.Tensor:
        """bfloat16 -> contiguous float32. A contiguous float32 tensor is returned as it is."""
        x = x.contiguous()
        if x.dtype == torch.float32:
            return x
        check(x, torch.bfloat16)
        out = torch.empty(x.shape, dtype=torch.float32)
        self._library.widen(x.data_ptr(), out.data_ptr(), x.numel(), torch.get_num_threads())
        return out

    def highest(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest value [R] float32 of each row of x [R, V], and the lowest id [R] int64 with that value.

        A row with NaN gives its first NaN and that NaN's id.
        """
        check(x, torch.float32)
        rows, width = x.shape
        if not width:
            raise ValueError("rows of nothing have no largest value")
        values, ids = torch.empty(rows), torch.empty(rows, dtype=torch.int64)
        self._library.highest(
            *(x.data_ptr(), values.data_ptr(), ids.data_ptr(), rows, width, torch.get_num_threads())
        )
        return values, ids

    def add_norm(self, residual: torch.Tensor, pending: Pending | None, norm: Norm | None) -> torch.Tensor:
        """Adds `pending` to residual [T, N] in place. Returns norm(residual); without a norm, a copy."""
        check(residual, torch.float32)
        after, delta = (None, None) if pending is None else (pending.norm, pending.delta)
        weights = [each.weight for each in (norm, after) if each is not None]
        for tensor in (*weights, *(() if delta is None else (delta,))):
            check(tensor, torch.float32)
        if delta is not None and delta.shape != residual.shape:
            raise ValueError("residual and delta differ in shape")
        if any(weight.shape != residual.shape[1:] for weight in weights):
            raise ValueError("a norm does not fit the residual")
        out = torch.empty_like(residual)
        first, last = NormStruct.of(after), NormStruct.of(norm)
        self._library.add_norm(
            *(residual.data_ptr(), None if delta is None else delta.data_ptr(), ctypes.addressof(first)),
            *(1.0 if pending is None else pending.scale, ctypes.addressof(last), out.data_ptr()),
            *(*residual.shape, torch.get_num_threads()),
        )
        return out

    def rope_and_cache(
        self,
        qkv: torch.Tensor,  # [T, (H + 2 Hkv) * D] float32
        cos: torch.Tensor,  # [T, D / 2] float32
        sin: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,  # of query and key heads, [D] float32
        eps: float,
        cache: NativeCache,
        slots: torch.Tensor,  # [T] int64
        heads: int,
        *,
        whole: bool = False,  # one norm over all heads: norms [H * D] and [Hkv * D]
    ) -> None:
        """Normalise (if `norms`) and rotate q (in place) and k; write k and v to the cache. k may change."""
        for tensor in (qkv, cos, sin, *(norms or ())):
            check(tensor, torch.float32)
        check(slots, torch.int64)
        struct = cache.struct
        if qkv.shape[1] != (heads + 2 * struct.kv_heads) * struct.key_dim or len(slots) != len(qkv):
            raise ValueError("qkv does not fit the cache or the slots")
        sizes = (heads, struct.kv_heads) if whole else (1, 1)
        for norm, count in zip(norms or (), sizes, strict=False):
            if norm.numel() != count * struct.key_dim:
                raise ValueError("a norm does not fit the heads")
        q_norm, k_norm = (norm.data_ptr() for norm in norms) if norms else (None, None)
        self._library.rope_and_cache(
            *(qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), q_norm, k_norm, eps, cache.address),
            *(slots.data_ptr(), len(qkv), heads, whole, torch.get_num_threads()),
        )

    def write_cache(
        self, key: torch.Tensor, value: torch.Tensor | None, cache: NativeCache, slots: torch.Tensor
    ) -> None:
        """Write key [T, Hkv, D] and value [T, Hkv, Dv] to the cache at slots [T] int64. A latent cache has no
        values of its own."""
        check(slots, torch.int64)
        struct, expected = cache.struct, (len(slots), cache.struct.kv_heads)
        rows = [self.widen(each) for each in (key, value) if each is not None]
        sizes = (struct.key_dim,) if cache.values is None else (struct.key_dim, struct.value_dim)
        if [each.shape for each in rows] != [(*expected, size) for size in sizes]:
            raise ValueError("keys or values do not fit the cache or the slots")
        at = *(each.data_ptr() for each in rows), None
        self._library.write_cache(
            *(*at[:2], cache.address, slots.data_ptr(), len(slots)),
            torch.get_num_threads(),
        )

    def attend(
        self,
        query: torch.Tensor,  # [T, H, D]; any strides, but 1 in D
        cache: NativeCache,
        context: ForwardContext,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,  # [H] float32
    ) -> torch.Tensor:
        """Causal attention over the keys and values in the cache: [T, H, Dv] of the query's type."""
        tokens, heads, dim = query.shape
        struct = cache.struct
        if (
            query.dtype not in TYPES
            or query.stride(2) != 1
            or dim != struct.key_dim
            or heads % struct.kv_heads
        ):
            raise ValueError("the query does not fit the cache")
        check_context(context, tokens, cache)
        if sinks is not None:
            check(sinks, torch.float32)
        out = torch.empty(tokens, heads, struct.value_dim, dtype=query.dtype)
        attention = AttentionStruct(
            query=query.data_ptr(),
            out=out.data_ptr(),
            start=context.query_start.data_ptr(),
            length=context.context_lens.data_ptr(),
            tables=context.block_tables.data_ptr(),
            sinks=None if sinks is None else sinks.data_ptr(),
            sequences=context.num_sequences,
            table_width=context.block_tables.shape[1],
            heads=heads,
            query_row=query.stride(0),
            query_head=query.stride(1),
            wide_query=query.dtype == torch.float32,
            out_row=heads * struct.value_dim,
            wide_out=query.dtype == torch.float32,
            window=window or 0,
            scale=scale,
            softcap=softcap or 0.0,
        )
        self._library.attend(ctypes.addressof(attention), cache.address, torch.get_num_threads())
        return out

    def run_layers(
        self,
        layers: Layers,
        states: torch.Tensor,  # [T, N] float32, changed in place
        factors: Sequence[Factors],
        context: ForwardContext,
        waves: Sequence[Spans] = (),
        *,
        narrow: bool = False,
    ) -> None:
        """Run a step of decodes, prefill chunks or both through all layers, and fill their caches.

        `narrow`: the last layer computes only the wanted rows of `context`, and puts them first in `states`;
        the rows after them have no meaning. `waves`: if layers have states, each row is in one of the spans.
        """
        run_layers(self._library, layers, states, factors, context, waves, narrow=narrow)

    def gate_heads(self, heads: torch.Tensor, gates: torch.Tensor) -> None:
        """heads [T, H, D] float32 *= sigmoid(gates [T, H * D]) in place. The rows of gates may lie apart."""
        check(heads, torch.float32)
        count, width = len(heads), heads[0].numel() if len(heads) else 0
        if gates.shape != (count, width) or gates.dtype != torch.float32 or (width and gates.stride(1) != 1):
            raise ValueError("gates do not fit the heads")
        self._library.gate_heads(
            *(heads.data_ptr(), gates.data_ptr(), count, width, gates.stride(0)), torch.get_num_threads()
        )

    def over_spans(self, function: SpanFunction, spans: Spans) -> None:
        """As `SpanFunction.run`."""
        function.run(self._library, spans)

    def run_experts(
        self,
        experts: NativeExperts,
        x: torch.Tensor,  # [T, N] of any float type
        chosen: torch.Tensor,  # [T, K] int64: different ones for a row; a number beyond all chooses none
        weights: torch.Tensor,  # [T, K]
    ) -> torch.Tensor:
        """For each row, the weighted sum of its experts' outputs: [T, M] float32.

        A row's result does not depend on the other rows.
        """
        return experts.run(self._library, self.widen(x), chosen.contiguous(), self.widen(weights))

    def run_mixture(self, mixture: NativeMixture, x: torch.Tensor, *shared: torch.Tensor) -> torch.Tensor:
        """The same for all of `mixture`: x [T, N] float32 -> [T, M]. `shared`: as for `NativeMixture.run`."""
        return mixture.run(self._library, x, *shared)

    def run_heads(self, heads: NativeHeads, x: torch.Tensor) -> torch.Tensor:
        """As `NativeHeads.run`, for inputs of any float type."""
        return heads.run(self._library, self.widen(x))

    def gated(self, gate_up: torch.Tensor, gelu: bool = False) -> torch.Tensor:
        """[T, 2N] -> [T, N]: act(gate) * up. `act` is GELU in its tanh form if `gelu`, else SiLU."""
        check(gate_up, torch.float32)
        tokens, both = gate_up.shape
        out = torch.empty(tokens, both // 2, dtype=torch.float32)
        self._library.gated(
            *(gate_up.data_ptr(), out.data_ptr(), tokens, both // 2, gelu, torch.get_num_threads())
        )
        return out
