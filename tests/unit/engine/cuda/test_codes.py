"""Products with packed codes on a GPU: in Triton's interpreter where there is no device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serve_app.engine.weights import codes_product
from serve_app.engine.weights.codes_product import CodesProduct, parts_of
from serve_app.engine.weights.decoding import STEP, Form, instructions
from serve_app.engine.weights.gpu_codes import CODES, GpuCodes, packed, unpacked, values
from tests.support.codes import grouped, some_codes
from tests.support.ptx import halves, run
from tests.support.triton_interpreter import LONG

pytestmark = pytest.mark.usefixtures("one_thread")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
FORMS = pytest.mark.parametrize("form", list(Form), ids=lambda form: form.name)


def numbers(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def check(codes: GpuCodes, rows: int, dtype: torch.dtype, *, biased: bool = False) -> None:
    """The product is that of the numbers, and the first row's bits are those that it has alone."""
    x = numbers(rows, codes.inputs, dtype=dtype, seed=rows)
    bias = numbers(codes.outputs, dtype=dtype, seed=3) if biased else None
    made = CodesProduct(codes, bias, dtype)
    got = made.multiply(x, dtype)
    want = x.double() @ codes.numbers().double().T + (0 if bias is None else bias.double())
    error = ROUNDING[dtype] * float(want.abs().max())
    torch.testing.assert_close(got.double(), want, rtol=ROUNDING[dtype], atol=error)
    for row in (0, rows - 1):
        assert torch.equal(made.multiply(x[row : row + 1], dtype)[0], got[row])


@FORMS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_instructions_that_a_device_runs_decode_every_code(form: Form, dtype: torch.dtype) -> None:
    """On a processor: by the rules of PTX, for words with every code in every place."""
    words = np.random.default_rng(0).integers(0, 2**32, (2, 4096), dtype=np.uint32)
    program = instructions(form, half=dtype == torch.float16)
    got = run(program, form.codes, list(words))
    for place, each in enumerate(got):
        codes = torch.from_numpy(
            (words >> np.uint32(form.bits * place) & np.uint32(2**form.bits - 1)).T.copy()
        )
        usable = torch.ones_like(codes, dtype=torch.bool)
        if form is Form.FP8:
            usable = codes & 127 != 127  # NaN
        want = values(codes.to(torch.uint8), form).double()
        assert torch.equal(halves(each, dtype)[usable], want[usable])


@FORMS
@pytest.mark.parametrize("inputs", [STEP, 40, 3 * STEP + 24])
def test_packed_codes_are_the_codes(form: Form, inputs: int) -> None:
    codes = some_codes(form, 5, inputs)
    assert torch.equal(unpacked(packed(codes, form), form)[:, :inputs], codes)


@pytest.mark.parametrize(("name", "error"), [("int8", 0.01), ("fp8", 0.03), ("int4", 0.085)])
def test_codes_are_near_the_weights(name: str, error: float) -> None:
    weight = numbers(33, 200)
    weight[3], weight[4, 7] = 0, 40  # a row of zeros, and an outlier
    codes = CODES[name](weight)
    assert not codes.numbers()[3].any()
    rows = [row for row in range(33) if row not in (3, 4)]
    difference = (codes.numbers() - weight)[rows].norm() / weight[rows].norm()
    assert 0 < difference < error


@pytest.mark.parametrize("name", list(CODES))
@pytest.mark.parametrize(
    ("outputs", "inputs", "rows", "dtype"),
    [
        (70, 200, 1, torch.float32),
        (70, 200, 9, torch.bfloat16),
        (5, 24, 3, torch.float16),
        pytest.param(130, 1100, 5, torch.float32, marks=LONG),
        pytest.param(65, 256, codes_product.FEW + 3, torch.bfloat16, marks=LONG),
    ],
    ids=str,
)
def test_products_are_those_of_the_numbers(
    name: str, outputs: int, inputs: int, rows: int, dtype: torch.dtype
) -> None:
    check(CODES[name](numbers(outputs, inputs)), rows, dtype, biased=True)


@pytest.mark.parametrize(
    ("form", "group", "zeros"),
    [
        (Form.INT4, 128, True),
        (Form.FP4, 32, False),
        (Form.FP8, 128, False),
        pytest.param(Form.INT4, 64, True, marks=LONG),
        pytest.param(Form.INT8, 128, True, marks=LONG),
        pytest.param(Form.INT4, 512, False, marks=LONG),
    ],
)
def test_products_with_the_groups_of_checkpoints_are_those_of_the_numbers(
    form: Form, group: int, zeros: bool
) -> None:
    check(grouped(form, 20, 640, group, zeros=zeros), 2, torch.float32)


def test_parts_are_summed_by_programs_of_their_own_and_in_one_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes = CODES["int8"](numbers(16, 9 * STEP))
    made, x = CodesProduct(codes, None, torch.float32), numbers(3, 9 * STEP)
    assert made.parts == 2
    apart = [made.multiply(x, torch.float32) for _ in range(2)]  # the second time, counters are as before
    monkeypatch.setattr(codes_product, "APART", 0)
    together = made.multiply(x, torch.float32)
    assert torch.equal(apart[0], together)
    assert torch.equal(apart[1], together)


def test_matrices_with_few_outputs_have_more_parts() -> None:
    assert [parts_of(tiles, 32) for tiles in (1, 64, 96, 128, 256)] == [8, 4, 4, 2, 1]
    assert parts_of(1, 7) == 1


def test_rows_of_another_width_are_refused_and_no_rows_give_none() -> None:
    made = CodesProduct(CODES["int8"](numbers(8, 16)), None, torch.float32)
    assert made.multiply(numbers(0, 16), torch.float32).shape == (0, 8)
    with pytest.raises(ValueError, match=r"a matrix of 8 x 16 got \(2, 17\)"):
        made.multiply(numbers(2, 17), torch.float32)
