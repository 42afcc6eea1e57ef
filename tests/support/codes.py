"""Random packed codes for products on a GPU, as checkpoints have them."""

from __future__ import annotations

import torch

from serve_app.engine.weights.decoding import STEP, Form
from serve_app.engine.weights.gpu_codes import GpuCodes, packed

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def some_codes(form: Form, outputs: int, inputs: int) -> torch.Tensor:
    """uint8 [N, K]: any, but not NaN."""
    made = torch.Generator().manual_seed(outputs + inputs)
    codes = torch.randint(0, 2**form.bits, (outputs, inputs), generator=made, dtype=torch.uint8)
    if form is Form.FP8:
        codes[codes & 127 == 127] = 0
    return codes.to(DEVICE)


def grouped(form: Form, outputs: int, inputs: int, group: int, *, zeros: bool = False) -> GpuCodes:
    groups = -(-(-(-inputs // STEP) * STEP) // group)
    made = torch.Generator().manual_seed(group)
    scales = torch.rand(groups, outputs, generator=made).to(DEVICE) / 16
    found = (
        torch.randint(-7, 8, (groups, outputs), generator=made, dtype=torch.int8).to(DEVICE)
        if zeros
        else None
    )
    words = packed(some_codes(form, outputs, inputs), form)
    return GpuCodes(form, words, scales.to(torch.float16), inputs, group, found)
