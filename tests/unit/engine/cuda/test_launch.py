"""The kernels of fused layers equal plain torch, in shapes that fill no program."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from serve_app.engine.attention.block_pools import Pools
from serve_app.engine.cuda.launch import TritonKernels
from serve_app.engine.kernels.quantized import cached_rows, code_values, stored_as
from serve_app.engine.norm import Norm, Pending

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
KINDS = pytest.mark.parametrize("dtype", list(ROUNDING), ids=str)


def numbers(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size))).to(DEVICE, dtype)


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), want.float(), rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@KINDS
@pytest.mark.parametrize("added", [False, True])
def test_the_residual_takes_the_delta_and_its_norm_goes_out(dtype: torch.dtype, added: bool) -> None:
    residual, weight = numbers(3, 75), numbers(75)
    delta = numbers(3, 75, dtype=dtype) if added else None
    summed = residual if delta is None else residual + delta.float()
    pending = None if delta is None else Pending(delta)
    got = TritonKernels(dtype).add_norm(residual := residual.clone(), pending, Norm(weight, 1e-5))
    assert torch.equal(residual, summed)
    close(got, functional.rms_norm(summed, (75,), weight, 1e-5), dtype)


@KINDS
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_the_delta_has_a_norm_and_a_factor_of_its_own(
    dtype: torch.dtype, centred: bool, normed: bool
) -> None:
    residual, delta = numbers(3, 75), numbers(3, 75, dtype=dtype) + 1
    after, before = Norm(numbers(75), 1e-5, centred), Norm(numbers(75) + 1, 1e-3, centred)
    summed = residual + 0.5 * after(delta.float())
    kernels = TritonKernels(dtype)
    got = kernels.add_norm(
        residual := residual.clone(), Pending(delta, after, 0.5), before if normed else None
    )
    torch.testing.assert_close(residual, summed, rtol=1e-5, atol=1e-5)
    close(got, before(summed) if normed else summed, dtype)


@KINDS
def test_a_part_of_each_row_is_normalised(dtype: torch.dtype) -> None:
    x, weight = numbers(3, 90, dtype=dtype), numbers(40)
    want = torch.cat([x[:, :7].float(), Norm(weight, 1e-5)(x[:, 7:47].float()), x[:, 47:].float()], dim=1)
    TritonKernels(dtype).normalise_part(x, 7, weight, 1e-5)
    close(x, want, dtype)
    with pytest.raises(ValueError, match="wider than the rows"):
        TritonKernels(dtype).normalise_part(x, 60, weight, 1e-5)


@KINDS
@pytest.mark.parametrize("gelu", [False, True])
def test_the_activation_of_one_half_times_the_other(dtype: torch.dtype, gelu: bool) -> None:
    gate_up = numbers(3, 2 * 1100, dtype=dtype)
    gate, up = gate_up.float().chunk(2, dim=1)
    active = functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)
    close(TritonKernels(dtype).gated(gate_up, gelu), active * up, dtype)


@KINDS
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("codes", [None, torch.int8, torch.float8_e4m3fn], ids=str)
def test_heads_are_normalised_and_rotated_and_keys_and_values_find_their_slots(
    dtype: torch.dtype, normed: bool, codes: torch.dtype | None
) -> None:
    heads, kv_heads, size, eps = 6, 2, 24, 1e-5
    qkv = numbers(3, (heads + 2 * kv_heads) * size, dtype=dtype)
    angles = numbers(3, size // 2)
    norms = (numbers(size), numbers(size) + 1) if normed else None
    shape, kept = (4, 5, kv_heads, size), dtype if codes is None else stored_as(codes)
    pools = [
        Pools(
            torch.full(shape, 9.0, device=DEVICE).to(kept),
            torch.ones(shape[:3], device=DEVICE) if codes else None,
        )
        for _ in range(2)
    ]
    slots = torch.tensor([7, -1, 19], device=DEVICE)  # the second row is none
    query = TritonKernels(dtype).rope_and_cache(
        qkv, angles.cos(), angles.sin(), norms, eps, (pools[0], pools[1]), slots
    )
    split = qkv.float().view(3, -1, size).split([heads, kv_heads, kv_heads], dim=1)

    def turned(x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        low, high = (x if norm is None else functional.rms_norm(x, (size,), norm, eps)).chunk(2, dim=-1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

    close(query, turned(split[0], norms and norms[0]), dtype)
    for pool, found in zip(pools, (turned(split[1], norms and norms[1]), split[2]), strict=True):
        want = torch.full((20, kv_heads, size), 9.0, device=DEVICE)
        want[[7, 19]] = found[[0, 2]]
        if pool.scales is None:
            close(pool.rows.flatten(0, 1), want, dtype)
            continue
        assert codes is not None
        unwritten = [slot for slot in range(20) if slot not in (7, 19)]
        assert (pool.rows.flatten(0, 1)[unwritten] == 9).all()
        got = code_values(pool.rows.flatten(0, 1)) * pool.scales.flatten(0, 1)[..., None]
        limit = float(want.abs().max()) / (100 if codes == torch.int8 else 25)
        torch.testing.assert_close(got[[7, 19]], want[[7, 19]], rtol=0, atol=limit)
        exact, scales = cached_rows(want, codes)
        assert torch.equal(pool.scales.flatten(0, 1)[[7, 19]].isfinite(), scales[[7, 19]].isfinite())
        assert (pool.rows.flatten(0, 1)[[7, 19]].int() - exact[[7, 19]].int()).abs().max() <= 1


def test_no_rows_are_no_work() -> None:
    kernels = TritonKernels(torch.float32)
    assert kernels.add_norm(numbers(0, 8), None, Norm(numbers(8), 1e-5)).shape == (0, 8)
    assert kernels.gated(numbers(0, 8)).shape == (0, 4)
