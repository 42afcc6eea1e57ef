"""Kernels alone on a device: attention by the sizes of its programs, and products of few rows beside cuBLAS.

    python -m benchmarks.gpu.kernels decodes      # of 1 to 256 sequences
    python -m benchmarks.gpu.kernels prompts
    python -m benchmarks.gpu.kernels products
    python -m benchmarks.gpu.kernels codes        # the same products in each format of `quantization`

With the heads and matrices of Llama-3.1-8B in bfloat16. The first tile of each table is the one that serves.
Layers are replayed as one graph, so that launching costs nothing and no layer finds its memory in a cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from statistics import median
from typing import Final

import torch

from benchmarks.gpu.shapes import llama_3_1_8b
from benchmarks.roofline import Shape
from serve_app.engine.attention import LayerSpec
from serve_app.engine.attention.triton import backend as triton_backend
from serve_app.engine.attention.triton.backend import TritonAttention
from serve_app.engine.attention.triton.plan import PART
from serve_app.engine.attention.triton.tiles import Tile, tile_of_decodes, tile_of_prompts
from serve_app.engine.batch import build_batch
from serve_app.engine.forward_context import ForwardContext
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.engine.weights.codes_product import CodesProduct
from serve_app.engine.weights.gpu_codes import CODES
from serve_app.engine.weights.row_product import row_product
from serve_app.types import SamplingParams

DEVICE: Final = torch.device("cuda")
DTYPE: Final = torch.bfloat16
BLOCK: Final = 32
REPLAYS: Final = 9
DISTINCT: Final = 256 << 20  # bytes that layers read at least, together: several times a cache
SHAPE: Final = Shape.of_config(llama_3_1_8b().to_dict())
SHARED: Final = 227 * 1024
GROUP: Final = SHAPE.heads // SHAPE.kv_heads
DECODES: Final = ((1, 540), (8, 540), (64, 540), (256, 540), (8, 8192), (1, 32_768))  # sequences, tokens
PROMPTS: Final = ((512, 0), (2048, 0), (2048, 6144))  # tokens, tokens before them
TILES: Final = {
    "decodes": (
        tile_of_decodes(GROUP, SHAPE.head_dim, 2, codes=False, shared=SHARED),
        Tile(16, 64, 4, 5),
        Tile(16, 64, 4, 3),
        Tile(16, 32, 2, 6),
    ),
    "prompts": (
        tile_of_prompts(GROUP, SHAPE.head_dim, 2, codes=False, shared=SHARED),
        Tile(64, 64, 4, 3),
        Tile(64, 32, 4, 2),
        Tile(128, 64, 8, 3),
        Tile(128, 128, 8, 2),
    ),
}
LAYERS: Final = 8  # of products in a graph
ROWS: Final = (1, 8, 16, 32, 64, 128, 256)


def replayed(step: Callable[[], object]) -> float:
    """Seconds of a step as a graph: the median of some replays."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    times = []
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3)
    return float(median(times))


def context_of(chunks: list[tuple[int, int]]) -> tuple[ForwardContext, int]:
    """Sequences that compute so many tokens after so many others, in scattered blocks; and the blocks."""
    blocks = [-(-(count + before) // BLOCK) for count, before in chunks]
    order = iter(torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(0)).tolist())
    made = []
    for (count, before), size in zip(chunks, blocks, strict=True):
        end, table = count + before, list(islice(order, size))
        sequence = Sequence("", 0, end, [0] * end, SamplingParams(), 0, block_table=table)
        made.append(Chunk(sequence, before, count, end - 1))
    return build_batch(made, BLOCK, DEVICE).context, sum(blocks)


def attention(kind: str, chunks: list[tuple[int, int]]) -> Iterator[tuple[Tile, float]]:
    """Seconds of a layer, by tile. Raises where two tiles give other numbers."""
    context, blocks = context_of(chunks)
    backend = TritonAttention()
    kept = 2 * blocks * BLOCK * SHAPE.kv_heads * SHAPE.head_dim * DTYPE.itemsize
    layers = max(2, -(-DISTINCT // kept))
    spec = LayerSpec(SHAPE.kv_heads, SHAPE.head_dim, SHAPE.head_dim)
    backend.allocate((spec,) * layers, blocks, BLOCK, DTYPE, DEVICE)
    for layer in range(layers):
        for pools in backend.pools(layer):
            pools.rows.normal_()
    query = torch.randn(len(context.slots), SHAPE.heads, SHAPE.head_dim, device=DEVICE, dtype=DTYPE)
    most_parts = sum(-(-(count + before) // PART) for count, before in chunks)
    want = None
    for tile in TILES[kind]:
        setattr(triton_backend, f"tile_of_{kind}", lambda *_, tile=tile, **__: tile)

        def step() -> torch.Tensor:
            backend.begin_lasting(context, most_parts, 0 if kind == "decodes" else len(chunks))
            for layer in range(layers):
                out = backend.attend(layer, query, context, scale=SHAPE.head_dim**-0.5)
            return out

        got = step().float()
        want = got if want is None else want
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        yield tile, replayed(step) / layers


def decodes() -> None:
    for sequences, tokens in DECODES:
        read = 2 * sequences * tokens * SHAPE.kv_heads * SHAPE.head_dim * DTYPE.itemsize
        for tile, seconds in attention("decodes", [(1, tokens - 1)] * sequences):
            print(f"{sequences} x {tokens}, {tile}: {seconds * 1e6:.1f} us, {read / seconds / 1e12:.2f} TB/s")


def prompts() -> None:
    for tokens, before in PROMPTS:
        flops = SHAPE.attention_flops(tokens, before) / SHAPE.layers
        for tile, seconds in attention("prompts", [(tokens, before)]):
            rate = flops / seconds / 1e12
            print(f"{tokens} after {before}, {tile}: {seconds * 1e6:.1f} us, {rate:.0f} TFLOP/s")


def multiply_all(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    inputs: list[torch.Tensor],
    layers: list[list[torch.Tensor]],
) -> None:
    for weights in layers:
        for x, weight in zip(inputs, weights, strict=True):
            multiply(x, weight)


def sizes() -> list[tuple[int, int]]:
    """Of a layer's matrices: outputs and inputs."""
    widths = (SHAPE.heads + 2 * SHAPE.kv_heads) * SHAPE.head_dim, SHAPE.hidden, 2 * SHAPE.intermediate
    return [(width, SHAPE.hidden) for width in widths] + [(SHAPE.hidden, SHAPE.intermediate)]


def products() -> None:
    """All products of a layer, several layers in a graph."""
    layers = [
        [torch.randn(size, device=DEVICE, dtype=DTYPE) * 0.02 for size in sizes()] for _ in range(LAYERS)
    ]
    read = sum(weight.nbytes for weight in layers[0])
    for rows in ROWS:
        inputs = [torch.randn(rows, inputs, device=DEVICE, dtype=DTYPE) for _, inputs in sizes()]
        ways: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
            "cuBLAS": torch.nn.functional.linear
        }
        if rows == 1:
            ways["ours"] = lambda x, weight: row_product(x, weight, None)
        for name, multiply in ways.items():
            seconds = replayed(partial(multiply_all, multiply, inputs, layers)) / len(layers)
            print(f"{rows} rows, {name}: {seconds * 1e6:.1f} us, {read / seconds / 1e12:.2f} TB/s")


def multiply_codes(inputs: list[torch.Tensor], layers: list[list[CodesProduct]]) -> None:
    for weights in layers:
        for x, weight in zip(inputs, weights, strict=True):
            weight.multiply(x, DTYPE)


def codes() -> None:
    """As `products`, with weights as codes: each rate counts the bytes of codes and scales."""
    for name, choose in CODES.items():
        plain = [[torch.randn(size, device=DEVICE, dtype=DTYPE) for size in sizes()] for _ in range(LAYERS)]
        layers = [[CodesProduct(choose(weight), None, DTYPE) for weight in each] for each in plain]
        del plain
        read = sum(weight.num_bytes for weight in layers[0])
        for rows in ROWS:
            inputs = [torch.randn(rows, inputs, device=DEVICE, dtype=DTYPE) for _, inputs in sizes()]
            seconds = replayed(partial(multiply_codes, inputs, layers)) / LAYERS
            print(f"{rows} rows, {name}: {seconds * 1e6:.1f} us, {read / seconds / 1e12:.2f} TB/s")


if __name__ == "__main__":
    {"decodes": decodes, "prompts": prompts, "products": products, "codes": codes}[sys.argv[1]]()
