"""Blocks whose memory the system has not given are used last, and that changes no answer.

Over a runner whose tokens depend on the whole prefix, so that a wrong block shows as a wrong token.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from serve_app.config import EngineConfig
from serve_app.engine.engine import Engine
from serve_app.types import EngineRequest, SamplingParams
from tests.support.fakes import VOCAB_SIZE, HashRunner, greedy_tokens

BLOCKS, BLOCK, READY = 40, 4, 20
LENGTH, OUTPUT = 25, 5  # of a request: eight blocks


@dataclass
class Memory:
    """A `BlockMemory` of plain numbers."""

    ready_blocks: int = READY
    block_seconds: float = 1000.0  # computing a block takes less, whatever the machine does beside
    run_seconds: float = 0.0


class Bench:
    """An engine over a cache that has a part of its memory."""

    def __init__(self, memory: Memory | None) -> None:
        self.runner = HashRunner(BLOCKS, BLOCK)
        self.runner.memory = memory
        self.engine = Engine(self.runner, EngineConfig(), eos_token_ids=frozenset(), max_model_len=80)
        self._names = (str(number) for number in itertools.count())
        self.run(prompt_of(0))  # from here on, the engine knows how long it computes a block

    def run(self, *prompts: tuple[int, ...]) -> list[int]:
        """Check the answers of prompts that come together; returns how many of their tokens were cached."""
        asked, answers, found = dict(zip(self._names, prompts, strict=False)), dict[str, list[int]](), []
        for name, prompt in asked.items():
            sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT)
            self.engine.add(EngineRequest(id=name, token_ids=prompt, sampling=sampling))
        while self.engine.has_work():
            for output in self.engine.step():
                answers.setdefault(output.request_id, []).extend(output.token_ids)
                if output.finish is not None:
                    found.append(output.cached_tokens)
            self.engine.check_integrity()
        assert answers == {name: greedy_tokens(prompt, OUTPUT) for name, prompt in asked.items()}
        return found

    @property
    def used_blocks(self) -> int:
        """Blocks that the runner ever wrote to."""
        return int((self.runner.cache != -1).any(axis=1).sum())


def prompt_of(number: int) -> tuple[int, ...]:
    return tuple((number * 13 + i * (number + 3)) % VOCAB_SIZE for i in range(LENGTH))


def test_prompts_one_after_another_stay_in_the_blocks_that_have_memory() -> None:
    bench = Bench(Memory())
    for number in range(12):
        bench.run(prompt_of(number))
    assert bench.used_blocks <= READY
    assert bench.engine.stats().blocks_ready == READY


def test_prompts_at_once_take_blocks_without_memory_when_all_others_are_in_use() -> None:
    bench = Bench(Memory())
    bench.run(*map(prompt_of, range(1, 5)))
    assert READY < bench.used_blocks <= 4 * -(-(LENGTH + OUTPUT) // BLOCK)
    assert bench.engine.stats().blocks_ready == bench.used_blocks


@pytest.mark.parametrize("memory", [None, Memory(block_seconds=0.0), Memory(ready_blocks=BLOCKS)])
def test_prefixes_stay_where_memory_is_given_or_cheap(memory: Memory | None) -> None:
    bench = Bench(memory)
    for number in range(12):
        bench.run(prompt_of(number))
    assert bench.used_blocks == BLOCKS == bench.engine.stats().blocks_ready


def test_a_prefix_that_came_again_stays_and_one_that_did_not_makes_room() -> None:
    bench = Bench(Memory())
    bench.run(prompt_of(20))
    assert bench.run(prompt_of(20)) == [LENGTH // BLOCK * BLOCK]
    for number in range(10):
        bench.run(prompt_of(number))
    assert bench.run(prompt_of(20)) == [LENGTH // BLOCK * BLOCK]
    assert bench.run(prompt_of(5)) == [0]
