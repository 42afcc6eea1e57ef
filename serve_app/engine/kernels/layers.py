"""Decoder layers with their caches and states, in the form that native calls need."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serve_app.engine.kernels.arena import zeros
from serve_app.engine.kernels.structs import (
    CACHED,
    INPUTS,
    LANES,
    POINTER,
    CacheStruct,
    DeltaStruct,
    LayerStruct,
    Product,
)


@dataclass(frozen=True, slots=True)
class NativeCache:
    """One layer's cache in the native layout. In a quantised cache, the scales follow the keys or values of
    each head."""

    keys: torch.Tensor  # [blocks, Hkv, D / g, block_size, g]: g = 2 features of bfloat16 lie together, else 1
    # [blocks, Hkv, block_size, pad]: pad = Dv rounded up to LANES. None: they are the first features of keys.
    values: torch.Tensor | None
    # Of int8, after the codes of each head: float32, in the same memory as the codes. None of other types.
    key_scales: torch.Tensor | None  # [blocks, Hkv, block_size]
    value_scales: torch.Tensor | None
    pieces: tuple[torch.Tensor, ...]  # [blocks, ...]: all of its memory
    struct: CacheStruct
    address: int

    @staticmethod
    def supports(block_size: int, key_dim: int, dtype: torch.dtype) -> bool:
        """Whether the layout supports blocks of this shape: keys are read sixteen at a time, in parts of
        1024, and two features at a time."""
        return dtype in CACHED and block_size in (16, 32, 64, 128, 256, 512, 1024) and key_dim % 2 == 0

    @classmethod
    def allocate(
        cls,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        dtype: torch.dtype,
        product: Product,
        *,
        latent: bool = False,
    ) -> NativeCache:
        """A cache of zeros, in huge pages. The system provides its memory as blocks are written or touched.

        `product`: how attention multiplies. With TILES and PAIRS, attention rounds to bfloat16 if key_dim is
        a multiple of 32; otherwise it multiplies in float32. `latent`: values are the first features of keys.
        Raises ValueError if they cannot be.
        """
        if latent and (value_dim % LANES or value_dim > key_dim or dtype == torch.int8):
            raise ValueError("such keys have no latent values")
        pad = -(-value_dim // LANES) * LANES
        together = 2 if dtype == torch.bfloat16 else 1
        shape = num_blocks, kv_heads, block_size
        keys, key_scales, key_piece = _room(shape, key_dim, dtype)
        values, value_scales, value_piece = (None,) * 3 if latent else _room(shape, pad, dtype)
        struct = CacheStruct(
            keys=keys.data_ptr(),
            values=None if values is None else values.data_ptr(),
            kv_heads=kv_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            value_pad=pad,
            block_size=block_size,
            element=dtype.itemsize,
            product=product if key_dim % INPUTS[torch.bfloat16] == 0 else Product.FLOATS,
        )
        return cls(
            keys=keys.view(num_blocks, kv_heads, key_dim // together, block_size, together),
            values=None if values is None else values.view(num_blocks, kv_heads, block_size, pad),
            key_scales=key_scales,
            value_scales=value_scales,
            pieces=(key_piece,) if value_piece is None else (key_piece, value_piece),
            struct=struct,
            address=ctypes.addressof(struct),
        )

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of all keys [blocks, Hkv, block_size, D] and values [..., pad], in float32."""
        keys = self.keys.float().movedim(3, 2).flatten(3)
        values = keys[..., : self.struct.value_dim] if self.values is None else self.values.float()
        if self.key_scales is None or self.value_scales is None:
            return keys, values
        return keys * self.key_scales[..., None], values * self.value_scales[..., None]


def _room(
    shape: tuple[int, int, int], dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Zeros for `dim` numbers a token, of `shape` [blocks, Hkv, block_size]: [blocks, Hkv, block_size * dim].

    Also returns the scales after the numbers of each head (None: there are none), and both as one tensor.
    """
    blocks, kv_heads, block_size = shape
    numbers = block_size * dim
    more = block_size * torch.float32.itemsize if dtype == torch.int8 else 0
    piece = zeros(blocks * kv_heads * (numbers + more), dtype).view(blocks, kv_heads, numbers + more)
    return piece[..., :numbers], piece[..., numbers:].view(torch.float32) if more else None, piece


@dataclass(frozen=True, slots=True)
class Layers:
    """Decoder layers, each with a cache or a rule with states: an argument of `Native.run_layers`."""

    structs: ctypes.Array[LayerStruct]
    pointers: ctypes.Array[ctypes.c_void_p]
    caches: tuple[NativeCache, ...]  # of the layers that attend; the pointers lead here
    rules: tuple[DeltaStruct, ...]  # of the others; structs lead here
    kinds_of_factors: int  # of rotary positions
    slots: int  # of each rule's states

    @classmethod
    def of(
        cls,
        structs: ctypes.Array[LayerStruct],
        caches: Sequence[NativeCache | None],
        rules: Sequence[DeltaStruct | None] | None = None,
        slots: int = 0,
    ) -> Layers:
        """Join layers with what each has: a cache, or a rule with `slots` for states. Raises ValueError if a
        layer does not fit it, or if no layer has a cache."""
        used = tuple(cache for cache in caches if cache is not None)
        rules = [None] * len(structs) if rules is None else rules
        own = type(structs).from_buffer_copy(structs)
        for layer, cache, rule in zip(own, caches, rules, strict=True):
            if not (used and _fits(layer, used[0].struct.block_size, cache, rule)):
                raise ValueError("a layer does not fit its cache, or its rule")
            layer.delta = None if rule is None else ctypes.addressof(rule)
        addresses = (None if cache is None else cache.address for cache in caches)
        kinds = 1 + max((layer.rotary for layer in structs), default=0)
        kept = tuple(rule for rule in rules if rule is not None)
        return cls(own, (POINTER * len(structs))(*addresses), used, kept, kinds, slots)


def _fits(layer: LayerStruct, block_size: int, cache: NativeCache | None, rule: DeltaStruct | None) -> bool:
    if cache is None:
        if rule is None:
            return False
        channels, values = 2 * rule.groups * rule.keys, rule.heads * rule.values
        return (layer.qkv.outputs, layer.out.inputs) == (channels + 2 * values + 2 * rule.heads, values)
    struct, own = cache.struct, layer.heads * cache.struct.key_dim
    outputs = own * (2 if layer.gated else 1) + 2 * struct.kv_heads * struct.key_dim
    shape = layer.qkv.outputs, layer.out.inputs, struct.value_dim, struct.block_size
    fit = rule is None and layer.heads % struct.kv_heads == 0
    return fit and shape == (outputs, own, struct.key_dim, block_size)
