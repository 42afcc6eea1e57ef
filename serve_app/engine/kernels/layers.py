"""Decoder layers and their caches, as native calls take them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from serve_app.engine.kernels.arena import zeros
from serve_app.engine.kernels.structs import (
    INPUTS,
    LANES,
    POINTER,
    TYPES,
    CacheStruct,
    LayerStruct,
    Product,
)


@dataclass(frozen=True, slots=True)
class NativeCache:
    """One layer's cache in the native layout."""

    keys: torch.Tensor  # [blocks, Hkv, D / g, block_size, g]: g = 2 features of bfloat16 lie together, else 1
    values: torch.Tensor  # [blocks, Hkv, block_size, Dv rounded up to LANES]
    struct: CacheStruct
    address: int

    @staticmethod
    def supports(block_size: int, key_dim: int, dtype: torch.dtype) -> bool:
        """Whether the layout takes such blocks: keys are read sixteen at a time, and in parts of 1024, by two
        features at a time."""
        return dtype in TYPES and block_size in (16, 32, 64, 128, 256, 512, 1024) and key_dim % 2 == 0

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
    ) -> NativeCache:
        """A cache of zeros, in huge pages. The system gives its memory as blocks are written, or touched.

        `product`: how attention multiplies. By TILES and PAIRS it rounds to bfloat16, if key_dim is a
        multiple of 32; else it multiplies in float32.
        """
        pad = -(-value_dim // LANES) * LANES
        rows = num_blocks * kv_heads * block_size
        together = torch.float32.itemsize // dtype.itemsize
        columns = (num_blocks, kv_heads, key_dim // together, block_size, together)
        keys = zeros(rows * key_dim, dtype).view(columns)
        values = zeros(rows * pad, dtype).view(num_blocks, kv_heads, block_size, pad)
        struct = CacheStruct(
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            kv_heads=kv_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            value_pad=pad,
            block_size=block_size,
            wide=dtype == torch.float32,
            product=product if key_dim % INPUTS[dtype] == 0 else Product.FLOATS,
        )
        return cls(keys, values, struct, ctypes.addressof(struct))


@dataclass(frozen=True, slots=True)
class Layers:
    """Decoder layers with a cache each: an argument of `Native.run_layers`."""

    structs: ctypes.Array[LayerStruct]
    pointers: ctypes.Array[ctypes.c_void_p]
    caches: tuple[NativeCache, ...]  # the pointers lead here

    @classmethod
    def of(cls, structs: ctypes.Array[LayerStruct], caches: tuple[NativeCache, ...]) -> Layers:
        """Join layers and caches. Raises ValueError if a layer does not fit its cache."""
        for layer, cache in zip(structs, caches, strict=True):
            dim, block_size = cache.struct.key_dim, caches[0].struct.block_size
            outputs = (layer.heads + 2 * cache.struct.kv_heads) * dim
            shape = (layer.qkv.outputs, layer.out.inputs, cache.struct.value_dim, cache.struct.block_size)
            if shape != (outputs, layer.heads * dim, dim, block_size) or layer.heads % cache.struct.kv_heads:
                raise ValueError("a layer does not fit its cache")
        return cls(structs, (POINTER * len(caches))(*(cache.address for cache in caches)), caches)
