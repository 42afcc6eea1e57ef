"""The product of two matrices in Triton, for all kernels of this project."""

from __future__ import annotations

import os

import triton
import triton.language as tl

# The interpreter keeps bfloat16 as sixteen bits, whose products mean nothing.
WIDENED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def product(left, right):
    """The product is summed in float32; float32 inputs are not rounded to TF32."""
    if WIDENED:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")
