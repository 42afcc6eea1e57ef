"""What a rank reads of a quantised matrix means the numbers that the whole matrix has there, exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from serve_app.codes.matrix import QuantisedMatrix
from serve_app.engine.kernels import native
from serve_app.engine.weights.gpu_own_codes import gpu_codes_of
from serve_app.engine.weights.own_codes import load_codes_on_cpu
from serve_app.models.quantised.converted import StoredMatrix
from serve_app.models.quantised.formats import reader_for
from serve_app.models.quantised.gguf import Gguf
from serve_app.models.quantised.packed import PackedTensor
from serve_app.models.quantised.plan import Plan
from serve_app.models.split.cut import Cut
from serve_app.models.stored import StoredTensor, stored_tensors
from tests.support.gguf_files import Type
from tests.support.packers import mxfp4
from tests.unit.models.quantised.test_formats import FORMATS

CPU: Final = torch.device("cpu")
ROWS, COLUMNS = 384, 256
BLOCKS: Final = {each.name: each for each in (Type.Q4_0, Type.Q4_1, Type.Q8_0)}
EVERY: Final = [*FORMATS, "mxfp4", *BLOCKS]
CUTS: Final = {
    "half the rows": Cut(0, ((192, 384),), 192),
    "rows within words and blocks": Cut(0, ((13, 51),), 38),
    "rows side by side": Cut(0, ((0, 10), (50, 61), (370, 384)), 35),
    "rows with zeros after them": Cut(0, ((368, 384),), 24),
    "zeros alone": Cut(0, ((384, 384),), 8),
    "half the columns": Cut(1, ((128, 256),), 128),
    "columns within groups": Cut(1, ((40, 104),), 64),
    "columns side by side": Cut(1, ((0, 24), (100, 136)), 60),
}


def packed_of(name: str, folder: Path) -> PackedTensor:
    """A matrix in this format, in a file."""
    weight = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)) / 8
    if name in BLOCKS:
        data = gguf.quants.quantize(weight.numpy(), BLOCKS[name])
        (folder / "blocks").write_bytes(data.tobytes())
        stored = StoredTensor("m.weight", name, (ROWS, COLUMNS), folder / "blocks", 0, data.nbytes)
        found = Gguf(name).find("m.weight", {"m.weight": stored})
        assert found is not None
        return found
    settings: dict[str, Any]
    if name == "mxfp4":
        tensors, settings = mxfp4("m", weight.T[None].contiguous())[0], {"quant_method": "mxfp4"}
    else:
        pack, settings = FORMATS[name]
        tensors = pack("m", weight)[0]
    save_file(tensors, folder / "model.safetensors")
    (packed,) = Plan.of(stored_tensors(folder), reader_for(settings)).packed
    return packed


def codes_of(packed: PackedTensor) -> QuantisedMatrix:
    return StoredMatrix(packed, None if packed.experts is None else 0, CPU).codes()


def cut_of(packed: PackedTensor, cut: Cut) -> PackedTensor:
    """`cut`: of the matrix."""
    if packed.transposed:
        return packed.part(Cut(2 - cut.dim, cut.ranges, cut.size))
    return packed.part(cut)


@pytest.mark.parametrize("name", EVERY)
def test_a_part_has_the_numbers_of_the_whole(name: str, tmp_path: Path) -> None:
    packed = packed_of(name, tmp_path)
    whole = codes_of(packed).dequantise(torch.float32)
    for what, cut in CUTS.items():
        part = cut_of(packed, cut)
        matrix = codes_of(part)
        wanted = cut.of(whole)
        assert part.shape == tuple(wanted.shape), what
        assert torch.equal(matrix.dequantise(torch.float32), wanted), what
        on_gpu = gpu_codes_of(matrix) if matrix.codes.numel() else None
        if on_gpu is not None and what != "zeros alone":
            assert torch.equal(on_gpu.numbers(), wanted), what


@pytest.mark.parametrize("name", EVERY)
def test_a_part_stays_codes_where_the_whole_does(name: str, tmp_path: Path) -> None:
    """With halves of rows, and of columns that groups of 16 divide."""
    packed = packed_of(name, tmp_path)
    whole = codes_of(packed)
    act_order = "act-order" in name
    for cut in (CUTS["half the rows"], CUTS["half the columns"], Cut(1, ((32, 96),), 64)):
        part = codes_of(cut_of(packed, cut))
        assert (gpu_codes_of(part) is None) == (gpu_codes_of(whole) is None)
        if native() is not None and not (act_order and cut.dim == 1):
            on_cpu = [load_codes_on_cpu(each, None, torch.float32, lasting=False) for each in (part, whole)]
            assert (on_cpu[0] is None) == (on_cpu[1] is None)


@pytest.mark.parametrize("columns", [(0, 256), (128, 256), (0, 40), (8, 48)])
@pytest.mark.parametrize("name", ["gptq 4 symmetric", "pack-quantized 8 with zeros", "mxfp4", "Q8_0"])
def test_the_check_counts_a_part_as_it_is_kept(name: str, columns: tuple[int, int], tmp_path: Path) -> None:
    """As codes, or converted where the pieces of its groups have no product."""
    if native() is None:
        pytest.skip("without native products, weights are plain numbers")
    packed = packed_of(name, tmp_path)
    part = cut_of(packed, Cut(1, (columns,), columns[1] - columns[0]))
    held = load_codes_on_cpu(codes_of(part), None, torch.bfloat16, lasting=False)
    counted = part.kept("cpu")
    assert (held is None) == (counted is None) == (columns == (8, 48))
    if held is not None and counted is not None and columns[1] > 64:  # others have whole vectors of zeros
        assert 0.8 * held.num_bytes <= counted.num_bytes <= 1.2 * held.num_bytes


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", EVERY)
def test_no_more_than_the_part_is_read(name: str, dim: int, tmp_path: Path) -> None:
    """But for what is of all rows or columns: zeros and scales of groups in any order, nested scales."""
    packed = packed_of(name, tmp_path)
    size = packed.shape[dim] // 4
    part = cut_of(packed, Cut(dim, ((size, 2 * size),), size))
    for role, tensor in part.parts.items():
        whole = packed.parts[role]
        if role in ("codes", "blocks"):
            assert tensor.num_bytes <= 1.25 * whole.num_bytes / 4, role  # blocks of 20 and 24
        elif tensor.num_bytes > whole.num_bytes / 3:
            assert tensor == whole, role
            assert whole.num_bytes < 2048 or "order" in name or "gptq" in name or "nested" in name, role


def test_the_words_of_a_file_are_read_as_few_pieces(tmp_path: Path) -> None:
    data = np.arange(24, dtype=np.uint8).reshape(4, 6)
    (tmp_path / "x").write_bytes(data.tobytes())
    stored = StoredTensor("x", "U8", (2, 2, 6), tmp_path / "x", 0, 24)
    cut = stored.part(Cut(2, ((1, 3), (5, 6)), 3))
    assert cut.num_bytes == 12
    assert cut.entry(1).part(Cut(0, ((1, 2),), 1)).shape == (1, 3)
