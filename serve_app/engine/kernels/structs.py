"""The C structures and constants of the native functions, with the same fields as in the headers.

The build compares every field, size and constant with the headers, and fails if they differ (see layout.py).
The headers document the fields.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any, ClassVar, Final

import torch

from serve_app.engine.norm import Norm

POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float

TYPES: Final = (torch.float32, torch.bfloat16)  # of weights that are not quantised
CACHED: Final = (*TYPES, torch.int8)  # of caches; int8: codes with a float32 scale for each key and value
LANES: Final = 16  # outputs in a panel of a packed weight; values in the cache are padded to a multiple
# Inputs of a panel are padded to a multiple of these.
INPUTS: Final = {torch.float32: 2, torch.bfloat16: 32, torch.int8: 64}

INT4_INPUTS: Final = 16  # of an int4 weight, that share a step and a least


def packed_size(n: int, k: int, dtype: torch.dtype) -> int:
    """The elements of a packed weight [n, k] (see panels.h)."""
    return -(-n // LANES) * LANES * -(-k // INPUTS[dtype]) * INPUTS[dtype]


def quantized_size(n: int, k: int, product: Product) -> int:
    """The bytes of a packed weight [n, k] of INT8 or INT4 (see int8_product.h, int4_product.h)."""
    codes = packed_size(n, k, torch.int8)
    if product is Product.INT4:
        codes = codes // 2 + 2 * codes // INT4_INPUTS
    return codes + 4 * -(-n // LANES) * LANES


class Product(IntEnum):
    """How a product is computed."""

    FLOATS = 0  # float32 weights
    WIDENED = 1  # bfloat16 weights, widened to float32
    PAIRS = 2  # bfloat16 weights, inputs rounded to bfloat16, with AVX512-BF16
    TILES = 3  # bfloat16 weights, inputs rounded to bfloat16, with AMX
    INT8 = 4  # int8 weights, inputs rounded to int8
    INT4 = 5  # the same with weights of four bits, and a step and a least for every sixteen
    GROUPED4 = 6  # codes of four bits with a scale and a zero for each group, inputs rounded to int8
    GROUPED8 = 7  # the same with codes of eight bits


class Preempted(IntEnum):
    """The thread that a test makes act as if its core had been taken away."""

    NOBODY = 0
    OWNER = 1  # the owner of a task, before it writes: a stand-in writes instead
    STAND_IN = 2  # a stand-in, before it computes: the owner writes first


class Part(IntEnum):
    """A part of `run_layers` whose time is measured in a profile."""

    NORMS = 0  # with the rounding of their outputs for products
    QKV_PRODUCT = 1
    ROTARY = 2  # and the writing of keys and values to the cache; of prompts on AMX, within QKV_PRODUCT
    ATTENTION = 3  # or a delta rule in its place
    OUT_PRODUCT = 4
    GATE_UP_PRODUCT = 5  # and the gating
    DOWN_PRODUCT = 6
    EXPERTS = 7  # in place of these two products, with their router


class _Struct(ctypes.Structure):
    """A structure that takes all of its fields by name. Raises TypeError for a missing or unknown field."""

    _names: ClassVar[frozenset[str]]

    def __init_subclass__(cls) -> None:
        cls._names = frozenset(field[0] for field in cls._fields_)

    def __init__(self, **fields: Any) -> None:
        if fields.keys() != self._names:
            wrong = sorted(fields.keys() ^ self._names)
            raise TypeError(f"{type(self).__name__}: missing or unknown: {', '.join(wrong)}")
        super().__init__(**fields)


class CacheStruct(_Struct):
    """`Cache` in cache.h."""

    _fields_ = (
        *((name, POINTER) for name in ("keys", "values")),
        *((name, LONG) for name in ("kv_heads", "key_dim", "value_dim", "value_pad", "block_size")),
        *((name, LONG) for name in ("element", "product")),
    )


class AttentionStruct(_Struct):
    """`Attention` in attention.h."""

    _fields_ = (
        *((name, POINTER) for name in ("query", "out", "start", "length", "tables", "sinks")),
        *((name, LONG) for name in ("sequences", "table_width", "heads", "query_row", "query_head")),
        *((name, LONG) for name in ("wide_query", "out_row", "wide_out", "window")),
        *((name, FLOAT) for name in ("scale", "softcap")),
    )


class LinearStruct(_Struct):
    """`Linear` in linear.h."""

    _fields_ = (
        *((name, POINTER) for name in ("weight", "bias")),
        *((name, LONG) for name in ("outputs", "inputs", "product", "compact")),
    )

    @classmethod
    def none(cls) -> LinearStruct:
        """In place of a linear that a layer does not have."""
        return cls(weight=None, bias=None, outputs=0, inputs=0, product=0, compact=0)


class NormStruct(_Struct):
    """`Norm` in normalise.h."""

    _fields_ = (("weight", POINTER), ("centred", LONG), ("eps", FLOAT))

    @classmethod
    def of(cls, norm: Norm | None) -> NormStruct:
        """It is valid as long as `norm`. Without `norm`, a norm that changes no number."""
        if norm is None:
            return cls(weight=None, centred=False, eps=0.0)
        return cls(weight=norm.weight.data_ptr(), centred=norm.centred, eps=norm.eps)


class LayerStruct(_Struct):
    """`Layer` in layers.h."""

    _fields_ = (
        *((name, LinearStruct) for name in ("qkv", "out", "gate_up", "down")),
        *((name, NormStruct) for name in ("norm_in", "norm_attended", "norm_mid", "norm_gated")),
        *((name, POINTER) for name in ("q_norm", "k_norm", "mixture", "delta")),
        *((name, LONG) for name in ("heads", "window", "gelu", "gated", "whole", "parallel", "rotary")),
        *((name, FLOAT) for name in ("eps_head", "scale", "softcap", "added")),
    )


class ExpertsStruct(_Struct):
    """`Experts` in experts.h."""

    _fields_ = (
        *((name, POINTER) for name in ("gate_up", "down")),
        *((name, LONG) for name in ("count", "gelu")),
        *((name, FLOAT) for name in ("limit", "alpha", "added")),
    )

    @classmethod
    def none(cls) -> ExpertsStruct:
        """In place of an expert that a mixture does not have."""
        return cls(gate_up=None, down=None, count=0, gelu=False, limit=0.0, alpha=0.0, added=0.0)


class ChoicesStruct(_Struct):
    """`Choices` in experts.h."""

    _fields_ = (
        *((name, POINTER) for name in ("experts", "weights")),
        *((name, LONG) for name in ("rows", "each")),
    )


class RouterStruct(_Struct):
    """`Router` in experts.h."""

    _fields_ = (
        ("linear", LinearStruct),
        ("correction", POINTER),
        *((name, LONG) for name in ("each", "sigmoid", "normalised", "groups", "kept", "best")),
        ("scale", FLOAT),
    )


class MixtureStruct(_Struct):
    """`Mixture` in experts.h."""

    _fields_ = (
        ("router", RouterStruct),
        *((name, ExpertsStruct) for name in ("experts", "shared")),
        ("gate", LinearStruct),
    )


class WaveStruct(_Struct):
    """`Wave` in layers.h."""

    _fields_ = (("spans", POINTER), ("count", LONG))


class StepStruct(_Struct):
    """`Step` in layers.h."""

    _fields_ = (
        *((name, POINTER) for name in ("states", "cos", "sin", "slots", "start")),
        *((name, POINTER) for name in ("wanted", "length", "tables", "waves")),
        *((name, LONG) for name in ("rows", "sequences", "table_width", "wave_count")),
    )


class RecurrenceStruct(_Struct):
    """`Recurrence` in recurrence.h."""

    _fields_ = (
        *((name, POINTER) for name in ("query", "key", "value", "decay", "part", "out", "pool")),
        *((name, LONG) for name in ("heads", "groups", "keys", "values", "decays")),
    )


class ConvolutionStruct(_Struct):
    """`Convolution` in convolution.h."""

    _fields_ = (
        *((name, POINTER) for name in ("x", "weight", "bias", "out", "pool")),
        *((name, LONG) for name in ("channels", "width", "silu", "wide")),
    )


class ScanStruct(_Struct):
    """`Scan` in scan.h."""

    _fields_ = (
        *((name, POINTER) for name in ("x", "step", "rates", "into", "out_of", "out", "pool")),
        *((name, LONG) for name in ("channels", "states")),
    )


class DeltaStruct(_Struct):
    """`Delta` in delta.h."""

    _fields_ = (
        *((name, POINTER) for name in ("projected", "factors", "rates", "biases")),
        *((name, POINTER) for name in ("norm", "out", "windows", "pool")),
        *((name, LONG) for name in ("heads", "groups", "keys", "values", "width")),
        ("eps", FLOAT),
    )


STRUCTS: Final = (
    CacheStruct,
    AttentionStruct,
    LinearStruct,
    NormStruct,
    LayerStruct,
    ExpertsStruct,
    ChoicesStruct,
    RouterStruct,
    MixtureStruct,
    WaveStruct,
    StepStruct,
    RecurrenceStruct,
    ConvolutionStruct,
    ScanStruct,
    DeltaStruct,
)
ENUMS: Final = (Product, Preempted, Part)
