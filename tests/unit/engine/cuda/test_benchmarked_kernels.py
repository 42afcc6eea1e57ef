"""The benchmark of kernels alone runs, on a device or in Triton's interpreter; its figures mean nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from benchmarks.gpu import kernels
from serve_app.engine.attention.triton import backend
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.attention.triton.tiles import Tile
from tests.support.triton_interpreter import long


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran(step: Callable[[], object]) -> float:
        step()
        return 1e-3

    shape = replace(kernels.SHAPE, hidden=32, intermediate=48, heads=4, kv_heads=2, head_dim=16)
    tiles = dict.fromkeys(("decodes", "prompts"), (Tile(16, 16, 1, 1), Tile(32, 32, 1, 1)))
    for name, value in {
        "DEVICE": torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        "DTYPE": torch.float32,
        "BLOCK": 4,
        "DISTINCT": 1,
        "SHAPE": shape,
        "TILES": tiles,
        "DECODES": ((2, 40),),
        "PROMPTS": ((20, 8),),
        "ROWS": (1, 3),
        "LAYERS": 1,
        "replayed": ran,
    }.items():
        monkeypatch.setattr(kernels, name, value)
    for name in ("tile_of_decodes", "tile_of_prompts"):  # the benchmark replaces them
        monkeypatch.setattr(backend, name, getattr(backend, name))


@long
def test_every_tile_is_timed_and_gives_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.decodes()
    kernels.prompts()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    # Two layers a step.
    assert all(" 500.0 us," in line for line in lines)


def test_a_tile_that_gives_other_numbers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = TritonAttention.attend
    given = iter((0.0, 0.0, 1.0, 1.0))  # two layers by the first tile, then two by the second

    def wrong(*args: object, **options: object) -> torch.Tensor:
        return attend(*args, **options) + next(given, 1.0)  # type: ignore[arg-type]

    monkeypatch.setattr(TritonAttention, "attend", wrong)
    monkeypatch.setattr(kernels, "replayed", lambda step: 1e-3)
    with pytest.raises(AssertionError, match="not close"):
        kernels.decodes()


def test_products_of_one_row_are_timed_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.products()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["1 rows, cuBLAS", "1 rows, ours", "3 rows, cuBLAS"]


def test_products_with_codes_are_timed_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.codes()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"{rows} rows, {name}" for name in ("int8", "int4", "fp8") for rows in (1, 3)
    ]
