"""The part of a trial that tries products with weights as codes, for few rows and for many."""

from __future__ import annotations

from typing import Final

import torch

from serve_app.config.quantization import FORMATS
from serve_app.engine.weights.codes_product import FEW, CodesProduct
from serve_app.engine.weights.gpu_codes import CODES

# Outputs and inputs: summed in one part and in several; the last programs and steps are not whole.
SHAPES: Final = ((16_416, 300), (200, 4096))
ROWS: Final = (1, 40, FEW + 40)
# Of the largest result: rounding it, and sums in another order.
LIMIT: Final = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def products_fault(name: str, dtype: torch.dtype, device: torch.device) -> str | None:
    """The fault of products in the format `name` of `quantization`, in a sentence; None if there is none."""
    for each in sorted({name, FORMATS[name].sensitive}):
        for outputs, inputs in SHAPES:
            codes = CODES[each](torch.randn(outputs, inputs, device=device).div(inputs**0.5).to(dtype))
            made, numbers = CodesProduct(codes, None, dtype), codes.numbers()
            for rows in ROWS:
                x = torch.randn(rows, inputs, device=device).to(dtype)
                got, want = made.multiply(x, dtype).float(), x.float() @ numbers.T
                difference, largest = float((got - want).abs().max()), float(want.abs().max())
                if not difference <= LIMIT[dtype] * largest:  # NaN is a fault too
                    sizes = f"{outputs} x {inputs}, {rows} rows"
                    return f"products of {sizes} in {each} differ by {difference:.3g} of {largest:.3g}"
    return None
