"""Small mixtures of experts on the engine's own paths of a CPU, and their rows alone and in crowds."""

from __future__ import annotations

import random
from collections.abc import Sequence as Sequences

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from serve_app.config import EngineConfig
from serve_app.engine.attention.cpu import CpuAttention
from serve_app.engine.batch import build_batch
from serve_app.engine.cpu.fused import accelerate_cpu
from serve_app.engine.model.isolation import Runner
from serve_app.engine.model.runner import ModelRunner
from serve_app.engine.sequence import Chunk
from serve_app.engine.weights.format import WeightFormat
from serve_app.engine.weights.plain import PLAIN
from tests.support.engines import divided_runner
from tests.support.families import small_config
from tests.support.several_ranks import ranks
from tests.support.tiny_models import enlarge, make_sequence

BLOCK = 16
LONGEST = 60  # tokens


def mixture(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model as transformers has it."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(small_config(family)).eval().float()
    enlarge(model)
    model.set_attn_implementation("eager")
    return model.to(dtype)


def runner_of(
    model: PreTrainedModel, weights: WeightFormat = PLAIN, dtype: torch.dtype = torch.float32
) -> Runner:
    """`model`, which changes, as the engine runs it."""
    config = EngineConfig(block_size=BLOCK, num_blocks=256)
    if ranks() > 1:
        return divided_runner(model, weights.name, config)
    return ModelRunner(
        accelerate_cpu(model, dtype, weights=weights),
        backend=CpuAttention(),
        dtype=dtype,
        device=torch.device("cpu"),
        config=config,
    )


def texts(count: int, rng: random.Random, vocab: int = 96) -> list[list[int]]:
    return [[rng.randrange(3, vocab) for _ in range(rng.randint(1, LONGEST))] for _ in range(count)]


def alone(runner: Runner, text: Sequences[int]) -> torch.Tensor:
    """[T, V]: a text in one step of its own."""
    sequence = make_sequence("", list(text), list(range(LONGEST // BLOCK + 1)))
    return runner.run(build_batch([Chunk(sequence, 0, len(text), 0)], BLOCK, runner.device))


def in_crowd(runner: Runner, all_texts: Sequences[Sequences[int]], rng: random.Random) -> list[torch.Tensor]:
    """[T, V] of each text, all of them in pieces of random sizes: decodes and prompts in random steps."""
    blocks = LONGEST // BLOCK + 1
    sequences = [
        make_sequence(str(number), list(text), list(range(number * blocks, (number + 1) * blocks)))
        for number, text in enumerate(all_texts)
    ]
    done = [0] * len(sequences)
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    while any(each < len(text) for each, text in zip(done, all_texts, strict=True)):
        chunks, owners = [], []
        for number, sequence in enumerate(sequences):
            left = len(all_texts[number]) - done[number]
            if left and rng.random() < 0.7:
                size = min(left, rng.choice([1, 1, 2, 7, 19, 40]))
                chunks.append(Chunk(sequence, done[number], size, done[number]))
                owners.append(number)
                done[number] += size
        if chunks:
            rows = runner.run(build_batch(chunks, BLOCK, runner.device)).split([c.num_logits for c in chunks])
            for number, each in zip(owners, rows, strict=True):
                found[number].append(each)
    return [torch.cat(each) for each in found]
