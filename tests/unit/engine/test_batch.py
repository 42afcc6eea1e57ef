"""Packing chunks into a step's tensors."""

from __future__ import annotations

import random

import pytest
import torch

from serve_app.engine.batch import Fed, build_batch
from serve_app.engine.sequence import Chunk, Sequence
from serve_app.types import SamplingParams
from tests.support.pretend_device import PretendDevice

CPU = torch.device("cpu")


def chunk(tokens: list[int], table: list[int], start: int, length: int, first_logit: int) -> Chunk:
    made = Sequence("r", 0, len(tokens), tokens, SamplingParams(), 0, block_table=table)
    return Chunk(made, start, length, first_logit)


def test_a_mixed_batch_is_packed_sequence_after_sequence() -> None:
    batch = build_batch(
        [
            chunk([10, 11, 12, 13, 14], [7, 2], 4, 1, 4),  # a decode
            chunk([20, 21, 22, 23, 24, 25, 26], [5, 1, 9], 1, 5, 6),  # inside its prompt: no logits
            chunk([30, 31, 32], [3], 0, 3, 1),  # two rows of logits
        ],
        block_size=4,
        device=CPU,
    )
    assert batch.input_ids.tolist() == [14, 21, 22, 23, 24, 25, 30, 31, 32]
    assert batch.positions.tolist() == [4, 1, 2, 3, 4, 5, 0, 1, 2]
    assert batch.logit_rows.tolist() == [0, 7, 8]
    context = batch.context
    assert context.slots.tolist() == [8, 21, 22, 23, 4, 5, 12, 13, 14]
    assert context.query_start.tolist() == [0, 1, 6, 9]
    assert context.context_lens.tolist() == list(context.lens) == [5, 6, 3]
    assert context.query_lens == (1, 5, 3)
    assert context.block_tables.tolist() == [[7, 2], [5, 1], [3, 0]]
    assert context.wanted_start is not None
    assert context.wanted_start.tolist() == [0, 1, 1, 3]
    assert context.wanted_lens == (1, 0, 2)
    attended = context.of_wanted()
    assert attended.query_start is context.wanted_start
    assert attended.query_lens == (1, 0, 2)
    assert attended.lens == context.lens
    assert attended.of_wanted() is attended


def test_dtypes_are_those_the_attention_kernels_expect() -> None:
    batch = build_batch([chunk([1, 2], [0], 1, 1, 1)], block_size=4, device=CPU)
    assert {t.dtype for t in (batch.input_ids, batch.positions, batch.logit_rows, batch.context.slots)} == {
        torch.int64
    }
    context = batch.context
    assert {t.dtype for t in (context.query_start, context.context_lens, context.block_tables)} == {
        torch.int32
    }


def test_a_step_that_wants_every_row_does_not_say_which() -> None:
    batch = build_batch([chunk([1, 2], [0], 1, 1, 1), chunk([3, 4], [1], 0, 2, 0)], block_size=4, device=CPU)
    assert batch.context.wanted_start is None


def test_a_step_may_want_no_logits() -> None:
    batch = build_batch([chunk([1, 2, 3], [0], 0, 2, 2)], block_size=4, device=CPU)
    assert batch.logit_rows.shape == (0,)


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_slots_follow_the_block_table_token_by_token(block_size: int) -> None:
    rng = random.Random(block_size)
    for _ in range(50):
        end = rng.randrange(1, 50)
        start = rng.randrange(end)
        table = rng.sample(range(100), -(-end // block_size))
        batch = build_batch([chunk([0] * end, table, start, end - start, end)], block_size, CPU)
        expected = [table[p // block_size] * block_size + p % block_size for p in range(start, end)]
        assert batch.context.slots.tolist() == expected


def test_inputs_go_to_a_device_in_one_copy_that_nobody_waits_for() -> None:
    chunks = [
        chunk([10, 11, 12, 13, 14], [7, 2], 4, 1, 4),
        chunk([20, 21, 22, 23, 24, 25, 26], [5, 1, 9], 1, 5, 6),
        chunk([30, 31, 32], [3], 0, 3, 1),
    ]
    wanted = build_batch(chunks, 4, CPU)
    with PretendDevice() as device:
        found = build_batch(chunks, 4, device.device)
    assert (device.sent, device.waits) == (1, [])
    for name in ("input_ids", "positions", "logit_rows"):
        assert torch.equal(getattr(found, name).on_cpu, getattr(wanted, name))
    for name in ("query_start", "context_lens", "block_tables", "slots", "wanted_start"):
        assert torch.equal(getattr(found.context, name).on_cpu, getattr(wanted.context, name))


def test_a_pending_token_is_taken_from_the_device() -> None:
    first, second = chunk([10, 11], [7], 2, 1, 2), chunk([20, 21, 22], [5], 2, 1, 2)
    first.sequence.num_pending = 1
    last = Fed(torch.tensor([8, 17]), {first.sequence: 1})
    assert build_batch([second, first], 4, CPU, last).input_ids.tolist() == [22, 17]
    with PretendDevice() as device:
        there = Fed(device.put(last.tokens), last.rows)
        found = build_batch([second, first], 4, device.device, there)
    assert found.input_ids.on_cpu.tolist() == [22, 17]  # type: ignore[attr-defined]
    assert device.waits == []
    with pytest.raises(ValueError, match="pending"):
        build_batch([first], 4, CPU)
