"""Measures the memory of the largest steps on a GPU, beside weights and cache, by running them.

Depends on batches and torch's allocator, but not on what runs a batch or on the final size of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from serve_app.config import EngineConfig
from serve_app.engine.batch import Batch, build_batch
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams

Run = Callable[[Batch], object]


def is_measured(device: torch.device, config: EngineConfig) -> bool:
    """Whether steps are run to size the cache: on a GPU, unless the settings set its size."""
    return device.type == "cuda" and config.num_blocks is None and config.kv_cache_bytes is None


def blocks_of_steps(config: EngineConfig, window: int) -> int:
    """The blocks that a cache needs for `largest_steps`. `window`: the most tokens that one sequence may
    have."""
    return -(-min(config.max_step_tokens, window) // config.block_size)


def largest_steps(
    config: EngineConfig, window: int, vocab_size: int, device: torch.device, graphed: int = 0
) -> tuple[Batch, ...]:
    """Prompts of `max_step_tokens` tokens with all logits wanted, and a decode of `max_sequences` sequences.

    Between the two, unless `graphed` is 0, the largest graph: prompts of `graphed` tokens in all, each with
    one row of logits wanted. All sequences share the same blocks, so that the cache stays small; what they
    write there does not matter.
    """
    longest = min(config.max_step_tokens, window)
    table = list(range(blocks_of_steps(config, window)))
    # Of many tokens: those of one token alone would all go to the same experts.
    ids = [token % vocab_size for token in range(longest)]

    def sequence() -> Sequence:
        return Sequence("", 0, longest, ids, SamplingParams(), 0, block_table=table)

    steps = [[Chunk(sequence(), 0, length, 0) for length in _pieces(config.max_step_tokens, longest)]]
    if graphed:
        steps.append([Chunk(sequence(), 0, length, length - 1) for length in _pieces(graphed, longest)])
    decodes = min(config.max_sequences, config.max_step_tokens)
    last = longest - 1
    steps.append([Chunk(sequence(), last, 1, last) for _ in range(decodes)])
    return tuple(build_batch(chunks, config.block_size, device) for chunks in steps)


def _pieces(tokens: int, longest: int) -> list[int]:
    """The lengths of prompts that have `tokens` tokens in total, and up to `longest` tokens each."""
    count, rest = divmod(tokens, longest)
    return [longest] * count + [rest] * bool(rest)


def step_bytes(run: Run, steps: Iterable[Batch], device: torch.device) -> int:
    """The peak memory of `run`, summed over `steps`: a graph keeps the memory of the step that it records.

    Afterwards torch holds no unused memory. Raises torch.OutOfMemoryError.
    """
    return sum(_peak(run, step, device) for step in steps)


def _peak(run: Run, step: Batch, device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    run(step)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - held
