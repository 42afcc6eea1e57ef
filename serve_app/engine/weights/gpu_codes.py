"""Matrices of codes for products on a GPU: how codes are chosen for a plain matrix, and how they are packed.

These are the formats of `quantization` on a GPU. int8 and fp8 (E4M3) have a scale for each output, int4 has a
scale for every 32 inputs of an output. Only weights are rounded: rows keep their type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from serve_app.engine.weights.decoding import STEP, Form

GROUP: Final = 32  # inputs with one scale, of int4
LEAST_PEAK: Final = 1e-30  # weights with a smaller peak are zeros
MOST: Final = {Form.INT8: 127.0, Form.FP8: 448.0}  # code
# The codes tried for the largest magnitude of an int4 group; codes end at -8 and 7.
PEAKS: Final = (7.0, 7.5, 8.0, 8.5, 9.0, 9.5)
_HALF: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_VALUES: Final = torch.tensor((*_HALF, *(-each for each in _HALF)))
AT_ONCE: Final = 1 << 22  # weights that are packed at a time


@dataclass(frozen=True, slots=True)
class GpuCodes:
    """A matrix [N, K]. Each number is (code - zero) times its scale."""

    form: Form
    words: torch.Tensor  # [N, K / codes of a word] int32, with K filled up to whole steps
    scales: torch.Tensor  # [N] of any float type; with groups, [groups of whole steps, N]
    inputs: int  # K, or more if groups are filled up with codes that mean zero
    group: int = 0  # inputs with one scale; 0: all
    zeros: torch.Tensor | None = None  # int8, like the scales; of integers
    # [K]: the place among a row's inputs of each that is packed; None: its own.
    order: torch.Tensor | None = None

    @property
    def outputs(self) -> int:
        return len(self.words)

    @property
    def num_bytes(self) -> int:
        return sum(
            each.nbytes for each in (self.words, self.scales, self.zeros, self.order) if each is not None
        )

    def numbers(self) -> torch.Tensor:
        """[N, K] float32."""
        found = values(unpacked(self.words, self.form)[:, : self.inputs], self.form)
        if not self.group:
            return found * self.scales.float()[:, None]
        if self.zeros is not None:
            found = found - self._spread(self.zeros)
        found = found * self._spread(self.scales)
        if self.order is None:
            return found
        return found.new_zeros(len(found), int(self.order.max()) + 1).index_add_(1, self.order, found)

    def _spread(self, each: torch.Tensor) -> torch.Tensor:
        return each.float().T.repeat_interleave(self.group, 1)[:, : self.inputs]


def packed(codes: torch.Tensor, form: Form) -> torch.Tensor:
    """uint8 codes [N, K], a byte each -> words. Inputs that are missing in the last step get zeros."""
    outputs, inputs = codes.shape
    steps, places = -(-inputs // STEP), form.codes
    words = codes.new_empty(outputs, steps * STEP // places, dtype=torch.int32)
    nothing = 8 if form is Form.INT4 else 0
    for part in _rows(outputs, inputs):
        filled = functional.pad(codes[part], (0, steps * STEP - inputs), value=nothing)
        apart = filled.view(-1, steps, places, STEP // places).int()
        made = apart[:, :, 0]
        for place in range(1, places):
            made = made | (apart[:, :, place] << (form.bits * place))
        words[part] = made.flatten(1)
    return words


def unpacked(words: torch.Tensor, form: Form) -> torch.Tensor:
    """The codes [N, K] of words as uint8, with those of missing inputs."""
    places = form.codes
    apart: torch.Tensor = words.view(len(words), -1, 1, STEP // places)
    shifts = torch.arange(0, 32, form.bits, device=words.device, dtype=torch.int32)
    codes: torch.Tensor = (apart >> shifts[:, None]) & (2**form.bits - 1)
    return codes.to(torch.uint8).flatten(1)


def int8_codes(weight: torch.Tensor) -> GpuCodes:
    """The nearest codes; the largest magnitude of an output gets the code 127 or -127."""
    return _by_output(weight, Form.INT8, lambda wanted: wanted.round_().to(torch.int8))


def fp8_codes(weight: torch.Tensor) -> GpuCodes:
    """The nearest codes; the largest magnitude of an output gets the code 448 or -448."""
    return _by_output(weight, Form.FP8, lambda wanted: wanted.to(torch.float8_e4m3fn))


def int4_codes(weight: torch.Tensor) -> GpuCodes:
    """Of some scales for each group, those with the least squared error."""
    outputs, inputs = weight.shape
    filled = -(-inputs // STEP) * STEP
    words = weight.new_empty(outputs, filled // Form.INT4.codes, dtype=torch.int32)
    scales = weight.new_empty(filled // GROUP, outputs, dtype=torch.bfloat16)
    for part in _rows(outputs, inputs):
        wide = functional.pad(weight[part].float(), (0, filled - inputs)).view(-1, scales.shape[0], GROUP)
        peaks = wide.gather(2, wide.abs().argmax(2, keepdim=True))
        best = torch.zeros_like(wide)
        chosen, least = torch.zeros_like(peaks), torch.full_like(peaks, torch.inf)
        for peak in PEAKS:
            scale = (peaks / -peak).bfloat16().float()
            codes = (wide / torch.where(scale.abs() < LEAST_PEAK, 1.0, scale)).round_().clamp_(-8, 7)
            error = (codes * scale - wide).square_().sum(2, keepdim=True)
            better = error < least
            best, chosen = torch.where(better, codes, best), torch.where(better, scale, chosen)
            least = torch.where(better, error, least)
        scales[:, part] = chosen[:, :, 0].T.bfloat16()
        words[part] = packed((best + 8).to(torch.uint8).flatten(1)[:, :inputs], Form.INT4)
    return GpuCodes(Form.INT4, words, scales, inputs, GROUP)


CODES: Final[Mapping[str, Callable[[torch.Tensor], GpuCodes]]] = {
    "int8": int8_codes,
    "int4": int4_codes,
    "fp8": fp8_codes,
}


def _by_output(weight: torch.Tensor, form: Form, rounded: Callable[[torch.Tensor], torch.Tensor]) -> GpuCodes:
    """One scale for each output. `rounded` gives the codes, of a byte each, of numbers up to the most."""
    outputs, inputs = weight.shape
    words = weight.new_empty(outputs, -(-inputs // STEP) * STEP // form.codes, dtype=torch.int32)
    scales = weight.new_empty(outputs, dtype=torch.float32)
    for part in _rows(outputs, inputs):
        wide = weight[part].float()
        scales[part] = wide.abs().amax(1) / MOST[form]
        codes = rounded(wide / scales[part].clamp_min(LEAST_PEAK)[:, None])
        words[part] = packed(codes.view(torch.uint8), form)
    return GpuCodes(form, words, scales, inputs)


def values(codes: torch.Tensor, form: Form) -> torch.Tensor:
    """What uint8 codes mean, in float32."""
    if form is Form.INT4:
        return codes.float() - 8
    if form is Form.INT8:
        return codes.view(torch.int8).float()
    if form is Form.FP8:
        return codes.view(torch.float8_e4m3fn).float()
    return FP4_VALUES.to(codes.device)[codes.long()]


def _rows(outputs: int, inputs: int) -> Iterator[slice]:
    """Parts of a matrix of this shape, so small that their copies take little memory."""
    size = max(1, AT_ONCE // inputs)
    return (slice(first, min(outputs, first + size)) for first in range(0, outputs, size))
