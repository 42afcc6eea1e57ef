"""Decoding with latents in the cache, beside the keys and values of all heads: one layer on a CPU.

    python benchmarks/latents.py [--contexts 512 4096 16384] [--sequences 1 4] [--repeats 30]

The layer has the shape of DeepSeek-V2-Lite's attention, in bfloat16, with a small MLP. Both ways decode in
turn; times are medians, and the ratio is the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import statistics
import time
from unittest import mock

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from serve_app.config import EngineConfig
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.model import latents
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams

BLOCK = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4096, 16384])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    blocks = max(options.sequences) * max(options.contexts) // BLOCK
    kept = _runner(blocks)
    with mock.patch.object(latents, "_NEEDED", ("none of its attributes",)):  # transformers expands them
        expanded = _runner(blocks)
    print("| context | sequences | expanded, ms | latents, ms | ratio |")
    print("|---|---|---|---|---|")
    for context in options.contexts:
        for count in options.sequences:
            pairs = [
                (_time(expanded, context, count), _time(kept, context, count)) for _ in range(options.repeats)
            ]
            before, after = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
            ratio = statistics.median(one / other for one, other in pairs)
            print(f"| {context:,} | {count} | {before:.2f} | {after:.2f} | {ratio:.2f} |", flush=True)


def _runner(blocks: int) -> ModelRunner:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "deepseek_v2",
        num_hidden_layers=1,
        hidden_size=2048,
        num_attention_heads=16,
        num_key_value_heads=16,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        vocab_size=128,
        intermediate_size=64,
        first_k_dense_replace=1,
        max_position_embeddings=blocks * BLOCK,
    )
    model = accelerate_cpu(
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval(), torch.bfloat16
    )
    settings = EngineConfig(block_size=BLOCK, num_blocks=blocks)
    cpu = torch.device("cpu")
    return ModelRunner(model, backend=CpuAttention(), dtype=torch.bfloat16, device=cpu, config=settings)


def _time(runner: ModelRunner, context: int, count: int) -> float:
    """Seconds of a step in which `count` sequences of `context` tokens decode one token each."""
    each = context // BLOCK
    chunks = []
    for place in range(count):
        table = list(range(place * each, (place + 1) * each))
        sequence = Sequence(
            request_id=str(place),
            index=0,
            prompt_len=context,
            token_ids=[1] * context,
            sampling=SamplingParams(),
            seed=0,
            block_table=table,
        )
        chunks.append(Chunk(sequence, context - 1, 1, context - 1))
    batch = build_batch(chunks, BLOCK, torch.device("cpu"))
    began = time.perf_counter()
    runner.run(batch)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
