"""A mixture's layer on a CPU as one native call, beside transformers' code around the same packed weights.

    python benchmarks/experts_blocks.py [--rows 1 16] [--repeats 40]

One block with the shape of each model: router, experts and shared experts, in bfloat16. The two run in turn;
times are medians, in milliseconds. The last columns are the bytes of the active weights of a row, and the
part of the native call's time that reading them takes, at the bandwidth that was measured before.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any, Final

import torch
from limits import read_bandwidth
from torch import nn
from transformers import DeepseekV2Config, Glm4MoeConfig, Qwen2MoeConfig, Qwen3_5MoeTextConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock

from serve_app.engine.cpu.packing import packed_block
from serve_app.engine.experts.block import NativeBlock
from serve_app.engine.kernels import native
from serve_app.engine.weights.packed_linear import PackedLinear
from serve_app.engine.weights.plain import PLAIN

EXPERTS: Final = 16  # of each block, at least twice as many as a row takes: more only take memory
BLOCKS: Final[Mapping[str, tuple[type[nn.Module], Any]]] = {
    "Qwen1.5-MoE-A2.7B": (
        Qwen2MoeSparseMoeBlock,
        Qwen2MoeConfig(
            hidden_size=2048,
            num_experts=EXPERTS,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
        ),
    ),
    "Qwen3.5-35B-A3B": (
        Qwen3_5MoeSparseMoeBlock,
        Qwen3_5MoeTextConfig(
            hidden_size=2048,
            num_experts=EXPERTS,
            num_experts_per_tok=8,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
        ),
    ),
    "GLM-4.5-Air": (
        Glm4MoeMoE,
        Glm4MoeConfig(
            hidden_size=4096,
            n_routed_experts=EXPERTS,
            num_experts_per_tok=8,
            moe_intermediate_size=1408,
            n_shared_experts=1,
        ),
    ),
    "DeepSeek-V2-Lite": (
        DeepseekV2Moe,
        DeepseekV2Config(
            hidden_size=2048,
            n_routed_experts=EXPERTS,
            num_experts_per_tok=6,
            moe_intermediate_size=1408,
            n_shared_experts=2,
        ),
    ),
}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    bandwidth = read_bandwidth(torch.get_num_threads())
    print("| block | rows | transformers', ms | native, ms | ratio | MB a row | share of reading |")
    print("|---|---|---|---|---|---|---|")
    for name, (kind, config) in BLOCKS.items():
        own, made = _block(kind, config)
        active = config.num_experts_per_tok * 3 * config.moe_intermediate_size
        shared = getattr(config, "n_shared_experts", 0) * config.moe_intermediate_size
        shared = shared or config.shared_expert_intermediate_size
        size = (active + 3 * shared) * config.hidden_size * 1.5  # bytes a number, in compact weights
        for rows in options.rows:
            times = _times((own, made), rows, config.hidden_size, options.repeats)
            share = f"{size / bandwidth / times[1]:.2f}" if rows == 1 else ""
            shown = f"{times[0] * 1e3:.2f} | {times[1] * 1e3:.2f} | {times[1] / times[0]:.2f}"
            print(f"| {name} | {rows} | {shown} | {size / 1e6:.0f} | {share} |", flush=True)


def _block(kind: type[nn.Module], config: Any) -> tuple[nn.Module, NativeBlock]:
    """A random block with packed weights, and its native form."""
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    block, kernels = kind(config).eval().bfloat16(), native()
    for part in (*block.parameters(), *block.buffers()):
        part.normal_(0, 0.02)
    if kernels is None:
        raise SystemExit("no native kernels on this machine")
    packed = packed_block(block, config, PLAIN, PackedLinear.of)
    made = NativeBlock.of(packed, config, kernels)
    if made is None:
        raise SystemExit(f"{kind.__name__} has no native form")
    return packed, made


def _times(blocks: tuple[nn.Module, ...], rows: int, width: int, repeats: int) -> list[float]:
    """The median seconds of each block for other rows each time."""
    times: list[list[float]] = [[] for _ in blocks]
    for _ in range(repeats):
        x = torch.randn(1, rows, width)
        for block, found in zip(blocks, times, strict=True):
            began = time.perf_counter()
            block(x)
            found.append(time.perf_counter() - began)
    return [statistics.median(found) for found in times]


if __name__ == "__main__":
    main()
