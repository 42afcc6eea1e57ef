"""Triton's attention equals the reference: on a device where there is one, else in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from serve_app.engine.attention import AttentionBackend, LayerSpec
from serve_app.engine.attention.reference import ReferenceAttention
from serve_app.engine.attention.select import make_backend
from serve_app.engine.attention.triton import backend as triton_backend
from serve_app.engine.attention.triton import plan as triton_plan
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.attention.triton.plan import PART
from serve_app.engine.attention.triton.tiles import LARGE_SHARED, LEAST, tile_of_decodes, tile_of_prompts
from serve_app.engine.batch import build_batch
from serve_app.engine.kernels.quantized import cached_rows
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams
from tests.support.tiny_models import ARCHITECTURES, check_parity, tiny_model
from tests.support.triton_interpreter import LONG, long

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK, BLOCKS = 4, 32
ALL = {"window": 3, "softcap": 1.5, "sinks": True}
# One tuple a step: the (sequence, tokens) that it computes.
STEPS = (((0, 6), (1, 1), (2, 9)), ((1, 3), (0, 1), (2, 1)), ((2, 1), (1, 1)))
ROUNDING = {torch.float32: 1e-5 if DEVICE.type == "cpu" else 3e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of a few tokens have several parts, too."""
    for module in (triton_backend, triton_plan):
        monkeypatch.setattr(module, "PART", 8)


def sequence(table: list[int]) -> Sequence:
    return Sequence(
        request_id="r",
        index=0,
        prompt_len=4096,
        token_ids=[0] * 4096,
        sampling=SamplingParams(),
        seed=0,
        block_table=table,
    )


def scattered(count: int, blocks: int) -> list[Sequence]:
    order = torch.randperm(count * blocks, generator=torch.Generator().manual_seed(3)).tolist()
    return [sequence(order[i * blocks : (i + 1) * blocks]) for i in range(count)]


def options(heads: int, **chosen: Any) -> dict[str, Any]:
    if chosen.pop("sinks", False):
        chosen["sinks"] = torch.linspace(-1, 2, heads, device=DEVICE)
    return {"scale": 0.3, **chosen}


def compare(
    heads: int,
    spec: LayerSpec,
    steps: tuple[tuple[tuple[int, int], ...], ...],
    chosen: dict[str, Any],
    dtype: torch.dtype = torch.float32,
    block_size: int = BLOCK,
    blocks: int = 10,
    codes: torch.dtype | None = None,
) -> None:
    """Both backends compute `steps`, and every output is the same but for rounding."""
    torch.manual_seed(0)
    running = scattered(1 + max(index for step in steps for index, _ in step), blocks)
    backends: list[AttentionBackend] = [ReferenceAttention(), TritonAttention()]
    for one in backends:
        one.allocate((spec,), len(running) * blocks, block_size, dtype, DEVICE, codes=codes)
    for step in steps:
        chunks = []
        for index, length in step:
            start = running[index].num_computed
            chunks.append(Chunk(running[index], start, length, start + length))
            running[index].num_computed += length
        context = build_batch(chunks, block_size, DEVICE).context
        tokens = context.slots.shape[0]
        kv_heads = spec.num_kv_heads
        sizes = (heads, spec.key_dim), (kv_heads, spec.key_dim), (kv_heads, spec.value_dim)
        q, k, v = (torch.randn(tokens, *size, device=DEVICE).to(dtype) for size in sizes)
        v = k[..., : spec.value_dim] if spec.latent else v
        more = options(heads, latent=spec.latent, **chosen)
        want, got = (one.forward(0, q, k, v, context, **more) for one in backends)
        assert got.dtype == dtype
        torch.testing.assert_close(got, want, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param({}, id="plain"),
        pytest.param({"window": 5}, id="window", marks=LONG),
        pytest.param({"softcap": 1.5}, id="softcap", marks=LONG),
        pytest.param({"sinks": True}, id="sinks", marks=LONG),
        pytest.param(ALL, id="all"),
    ],
)
@pytest.mark.parametrize("codes", [None, torch.int8, pytest.param(torch.float8_e4m3fn, marks=LONG)], ids=str)
def test_every_option_equals_the_reference(chosen: dict[str, Any], codes: torch.dtype | None) -> None:
    compare(4, LayerSpec(2, 8, 8), STEPS, chosen, codes=codes)


@pytest.mark.parametrize(
    ("heads", "shape", "dtype"),
    [
        (4, (4, 24, 16), torch.float32),  # values narrower than keys, no power of two, one head a group
        pytest.param(6, (2, 80, 80), torch.bfloat16, marks=LONG),  # three heads a group
        pytest.param(20, (1, 64, 64), torch.float16, marks=LONG),  # one head of keys for all
        (4, (1, 576, 512), torch.float32),  # latent keys and values
    ],
    ids=str,
)
@pytest.mark.parametrize("codes", [None, torch.int8], ids=str)
def test_every_shape_equals_the_reference(
    heads: int, shape: tuple[int, int, int], dtype: torch.dtype, codes: bool
) -> None:
    compare(heads, LayerSpec(*shape), STEPS[:2], {}, dtype, codes=codes)


@pytest.mark.parametrize(
    ("heads", "shape", "dtype", "chosen"),
    [
        (6, (1, 24, 16), torch.float32, ALL),  # six heads a group
        pytest.param(128, (1, 288, 272), torch.float32, {}, marks=LONG),  # too many for one program
        pytest.param(16, (1, 576, 512), torch.bfloat16, {}, marks=LONG),
    ],
    ids=str,
)
def test_latent_values_equal_the_reference(
    heads: int, shape: tuple[int, int, int], dtype: torch.dtype, chosen: dict[str, Any]
) -> None:
    compare(heads, LayerSpec(*shape, latent=True), STEPS, chosen, dtype)


def test_a_prompt_of_many_tiles_after_a_prefix_equals_the_reference() -> None:
    compare(8, LayerSpec(2, 16, 16), (((0, 3),), ((0, 35), (1, 20)), ((0, 1), (1, 2))), {"window": 20})


# Softcap, a window, sinks, and keys wider than values. Families of fused layers: tests/unit/engine/cuda.
@long
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "architecture", [pytest.param("gemma2", marks=LONG), "gpt_oss", pytest.param("deepseek_v3", marks=LONG)]
)
def test_models_give_the_logits_and_greedy_tokens_of_transformers(architecture: str) -> None:
    check_parity(tiny_model(architecture).to(DEVICE), TritonAttention(), tolerance=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_model_on_a_device_gives_them_too(architecture: str) -> None:
    check_parity(tiny_model(architecture).to(DEVICE), TritonAttention(), tolerance=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("heads", "shape"),
    [(32, (8, 128, 128)), (16, (8, 128, 128)), (8, (4, 256, 256)), (71, (1, 64, 64)), (16, (1, 576, 512))],
    ids=str,
)
@pytest.mark.parametrize("chosen", [{}, {"window": 300}, ALL], ids=["plain", "window", "all"])
def test_shapes_of_real_models_equal_the_reference(
    heads: int,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    chosen: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (triton_backend, triton_plan):
        monkeypatch.setattr(module, "PART", PART)
    steps = (((0, 1500), (1, 40), (2, 1)), ((0, 1), (1, 700), (2, 1)), ((0, 1), (1, 1), (2, 1)))
    compare(heads, LayerSpec(*shape), steps, chosen, dtype, block_size=16, blocks=100)


def test_what_is_decoded_beside_a_sequence_changes_no_bit_of_it() -> None:
    spec, heads = LayerSpec(2, 8, 8), 4

    def last(others: int) -> torch.Tensor:
        torch.manual_seed(0)
        running = scattered(3, 10)
        made = TritonAttention()
        made.allocate((spec,), BLOCKS, BLOCK, torch.float32, DEVICE)
        for index, length in ((0, 21), (1, 33), (2, 5)):
            step = build_batch([Chunk(running[index], 0, length, length)], BLOCK, DEVICE).context
            made.forward(0, *rows(length, index), step, scale=0.3)
        chunks = [
            Chunk(running[index], length, 1, length + 1)
            for index, length in ((0, 21), (1, 33), (2, 5))[: 1 + others]
        ]
        q, k, v = (
            torch.cat(parts)
            for parts in zip(*(rows(1, 9 + index) for index in range(len(chunks))), strict=True)
        )
        return made.forward(0, q, k, v, build_batch(chunks, BLOCK, DEVICE).context, scale=0.3)[0]

    def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        made = torch.Generator().manual_seed(seed)
        q, k, v = (
            torch.randn(count, n, 8, generator=made).to(DEVICE)
            for n in (heads, spec.num_kv_heads, spec.num_kv_heads)
        )
        return q, k, v

    assert torch.equal(last(0), last(1))
    assert torch.equal(last(0), last(2))


@pytest.mark.gpu  # products on a processor are summed in an order that hangs on the place of a row
@pytest.mark.parametrize("chosen", [{}, {"window": 90}, {"softcap": 1.5}], ids=["plain", "window", "softcap"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_in_which_pieces_a_prompt_is_computed_changes_no_bit_of_it(
    chosen: dict[str, Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    sizes = (4, 64), (2, 64), (2, 64)
    rows = [torch.randn(300, *size, device=DEVICE).to(dtype) for size in sizes]

    def computed(*pieces: int) -> torch.Tensor:
        made, running, parts = TritonAttention(), sequence(list(range(75))), []
        made.allocate((LayerSpec(2, 64, 64),), 75, BLOCK, dtype, DEVICE)
        start = 0
        for length in pieces:
            end = start + length
            context = build_batch([Chunk(running, start, length, end)], BLOCK, DEVICE).context
            q, k, v = (each[start:end] for each in rows)
            parts.append(made.forward(0, q, k, v, context, **options(4, **chosen)))
            start = end
        return torch.cat(parts)

    whole = computed(300)
    assert torch.equal(computed(150, 150), whole)
    assert torch.equal(computed(37, 200, 63), whole)


@pytest.mark.parametrize("codes", [None, torch.int8, torch.float8_e4m3fn], ids=str)
def test_codes_and_scales_are_those_of_plain_torch(codes: torch.dtype | None) -> None:
    made, spec = TritonAttention(), LayerSpec(3, 24, 8)
    made.allocate((spec,), BLOCKS, BLOCK, torch.float32, DEVICE, codes=codes)
    k, v = (torch.randn(9, 3, size, device=DEVICE) * 5 for size in (24, 8))
    k[2], k[3, 1, 5], v[4, 0, 7] = 0.0, float("nan"), float("inf")
    k[5, :, :4] = torch.tensor([127.0, 0.5, -1.5, 2.5], device=DEVICE)  # ties
    k[5, :, 4:] = 0.0
    k[6, 0, 1:] /= 2.0 ** torch.arange(23, device=DEVICE)  # also codes of float8 below its normal numbers
    k[7, 0] = torch.tensor([448.0, 0.0029296875, 0.0009765625, 17.0, 19.0, 21.0], device=DEVICE).repeat(
        4
    )  # ties
    context = build_batch([Chunk(sequence([0, 1, 2]), 0, 9, 9)], BLOCK, DEVICE).context
    made.forward(0, torch.randn(9, 3, 24, device=DEVICE), k, v, context, scale=0.3)
    for pools, rows in zip(made.pools(0), (k, v), strict=True):
        kept = pools.rows.flatten(0, 1)[context.slots]
        if pools.scales is None:
            assert torch.equal(kept.nan_to_num(), rows.nan_to_num())
            continue
        assert codes is not None
        want = cached_rows(rows, codes)
        assert torch.equal(kept, want[0])
        scales = pools.scales.flatten(0, 1)[context.slots]
        torch.testing.assert_close(scales, want[1], atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("codes", [None, torch.int8], ids=str)
def test_what_a_broken_request_left_in_a_block_reaches_nobody(codes: torch.dtype | None) -> None:
    made = TritonAttention()
    made.allocate((LayerSpec(2, 8, 8),), BLOCKS, BLOCK, torch.float32, DEVICE, codes=codes)

    def step(*chunks: Chunk, fill: float | None = None) -> torch.Tensor:
        context = build_batch(chunks, BLOCK, DEVICE).context
        q, k, v = (torch.randn(context.slots.shape[0], heads, 8, device=DEVICE) for heads in (4, 2, 2))
        if fill is not None:
            k, v = torch.full_like(k, fill), torch.full_like(v, fill)
        return made.forward(0, q, k, v, context, **options(4, **ALL))

    broken, healthy, longer = (sequence(list(blocks)) for blocks in (range(10), range(2), range(5, 10)))
    step(Chunk(broken, 0, 40, 40), fill=float("nan"))
    assert step(Chunk(healthy, 0, 5, 5), Chunk(longer, 0, 17, 17)).isfinite().all()
    assert step(Chunk(healthy, 5, 1, 6), Chunk(longer, 17, 1, 18)).isfinite().all()


@pytest.mark.parametrize("codes", [None, torch.int8], ids=str)
def test_copied_blocks_are_read_like_their_sources(codes: torch.dtype | None) -> None:
    made = TritonAttention()
    made.allocate((LayerSpec(2, 8, 8),), BLOCKS, BLOCK, torch.float32, DEVICE, codes=codes)
    source, target = sequence([0, 1, 2]), sequence([10, 11, 12])
    q, k, v = (torch.randn(9, heads, 8, device=DEVICE) for heads in (4, 2, 2))
    made.forward(0, q, k, v, build_batch([Chunk(source, 0, 9, 9)], BLOCK, DEVICE).context, scale=0.3)
    made.copy_blocks([(0, 10), (1, 11), (2, 12)])
    got = [
        made.forward(
            0, q[:1], k[:1], v[:1], build_batch([Chunk(one, 9, 1, 10)], BLOCK, DEVICE).context, scale=0.3
        )
        for one in (source, target)
    ]
    assert torch.equal(*got)


def test_triton_is_chosen_by_name() -> None:
    assert isinstance(make_backend("triton", DEVICE), TritonAttention)


def test_triton_is_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="needs a model on a GPU, this one is on cpu"):
        make_backend("triton", torch.device("cpu"))


FULL = (
    ("bf16", "plain", (32, 8, 128, 128)),
    ("bf16", "all", (32, 8, 128, 128)),
    ("bf16", "all", (32, 8, 64, 64)),
    ("fp16", "all", (64, 8, 80, 80)),
    ("bf16", "plain", (8, 4, 256, 256)),
    ("bf16", "all", (71, 1, 64, 64)),
    ("bf16", "plain", (16, 16, 192, 128)),
    ("bf16", "latent", (16, 1, 576, 512)),
    ("bf16", "latent", (20, 1, 576, 512)),
    ("bf16", "latent", (128, 1, 576, 512)),
    ("fp32", "all", (32, 8, 128, 128)),
    ("fp32", "plain", (71, 1, 64, 64)),
    ("fp32", "latent", (16, 1, 576, 512)),
)
SPILLED = 64  # bytes of a thread's stack; where more are spilled, a smaller tile is faster
SPILLED_BY_CODES = 288  # the same for products with codes, at a width that no tile divides: Falcon 7B's 4,544


@pytest.mark.full  # Triton compiles for tens of seconds
@pytest.mark.parametrize(
    ("dtype", "chosen", "sizes"),
    [("bf16", "all", (4, 2, 16, 16)), *FULL],
    ids=str,
)
def test_the_kernels_compile_for_a_gpu_and_fit_it(dtype: str, chosen: str, sizes: tuple[int, ...]) -> None:
    """With pointers that are aligned, as the engine's are: loads then take more shared memory."""
    command = [sys.executable, "-m", "tests.support.triton_compiled", "sm_90", dtype, chosen]
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [*command, *map(str, sizes)], env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    taken = {name: (int(shared), int(stack)) for name, shared, stack in lines}
    many = 32 if dtype == "fp32" else 128
    rows_of_codes = ("INT4/16", f"FP8/{min(64, many)}", f"INT8/{many}", f"FP4/{many}")
    attention, layers, adapters, experts, states, codes = (
        {"write_rows", "divide", "decode_parts", "decode_join", "prompts"}
        | {
            f"{name}/{codes}"
            for name in ("write_codes", "decode_parts", "prompts")
            for codes in ("codes", "codes/fp8")
        },
        {"add_norm", "normalise_part", "gated", "rope_and_cache", "rope_and_cache/codes", "multiply_row"}
        | {"rope_and_cache/codes/fp8"},
        {"shrink/16", "expand/16", "shrink/64", "expand/64"},
        {f"{name}/{size}" for name in ("sort_pairs", "multiply_pairs", "add_pairs") for size in (16, 64)},
        {"convolve", "recur", "scan_channels"},
        {f"multiply_codes/{form}" for form in rows_of_codes}
        | {f"multiply_pairs_by_codes/{form}/{rows}" for form in ("FP4", "INT8") for rows in (16, 64)},
    )
    if chosen == "latent":
        assert set(taken) == {"write_rows", "decode_parts", "decode_join", "prompts"}
    else:
        assert set(taken) == attention | layers | adapters | experts | states | codes
    assert max(shared for shared, _ in taken.values()) <= LARGE_SHARED
    odd_width = sizes[0] * sizes[2] % 128 != 0
    for name, (_, stack) in taken.items():
        if dtype == "fp32" and "codes" in name:
            continue  # nobody needs them to be fast
        spills_more = odd_width and name.startswith("multiply_codes/")
        assert stack <= (SPILLED_BY_CODES if spills_more else SPILLED), name


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("width", [16, 64, 128, 256, 1024])
@pytest.mark.parametrize("group", [1, 2, 16, 32, 128])
def test_a_tile_holds_all_heads_of_a_group_and_divides_a_part(itemsize: int, width: int, group: int) -> None:
    tiles = [
        *(
            tile_of_decodes(group, width, itemsize, codes=codes, shared=shared)
            for codes in (False, True)
            for shared in (LARGE_SHARED, 64 * 1024)
        ),
        *(
            tile_of_prompts(group, width, itemsize, codes=codes, shared=shared)
            for codes in (False, True)
            for shared in (LARGE_SHARED, 99 * 1024)
        ),
    ]
    for tile in tiles:
        assert tile.rows % group == 0
        assert PART % tile.keys == 0
        assert min(tile.rows, tile.keys) >= LEAST
