"""The C structures of the native functions, field by field as in their headers."""

from __future__ import annotations

import ctypes
from enum import IntEnum

POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float


class CacheStruct(ctypes.Structure):
    """`Cache` in cache.h."""

    _fields_ = (
        *((name, POINTER) for name in ("keys", "values")),
        *((name, LONG) for name in ("kv_heads", "key_dim", "value_dim", "value_pad", "block_size")),
        *((name, LONG) for name in ("wide", "tiles")),
    )


class AttentionStruct(ctypes.Structure):
    """`Attention` in attention.h."""

    _fields_ = (
        *((name, POINTER) for name in ("query", "out", "start", "length", "tables", "sinks")),
        *((name, LONG) for name in ("sequences", "table_width", "heads", "query_row", "query_head")),
        *((name, LONG) for name in ("wide_query", "window")),
        *((name, FLOAT) for name in ("scale", "softcap")),
    )


class Product(IntEnum):
    """`Product` in linear.h: how a product is computed."""

    FLOATS = 0  # float32 weights
    WIDENED = 1  # bfloat16 weights, multiplied in float32
    PAIRS = 2  # bfloat16 weights, inputs rounded to bfloat16: AVX512-BF16
    TILES = 3  # the same on AMX


class LinearStruct(ctypes.Structure):
    """`Linear` in linear.h."""

    _fields_ = (
        *((name, POINTER) for name in ("weight", "bias")),
        *((name, LONG) for name in ("outputs", "inputs", "product")),
    )


class LayerStruct(ctypes.Structure):
    """`Layer` in decoder.cpp."""

    _fields_ = (
        *((name, LinearStruct) for name in ("qkv", "out", "gate_up", "down")),
        *((name, POINTER) for name in ("norm_in", "norm_mid", "q_norm", "k_norm")),
        *((name, LONG) for name in ("heads", "window", "gelu")),
        *((name, FLOAT) for name in ("eps_in", "eps_mid", "eps_head", "scale", "softcap")),
    )


class StepStruct(ctypes.Structure):
    """`Step` in decoder.cpp."""

    _fields_ = (
        *((name, POINTER) for name in ("states", "cos", "sin", "slots", "start", "length", "tables")),
        *((name, LONG) for name in ("rows", "sequences", "table_width")),
    )
