"""Decodes are divided into parts as plain Python divides them, by however many programs."""

from __future__ import annotations

import random

import pytest
import torch

from serve_app.engine.forward_context import ForwardContext

pytest.importorskip("triton")

from serve_app.engine.attention.triton import plan
from serve_app.engine.attention.triton.plan import Decodes, decodes_of, lasting_decodes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PART = 4
MOST_PARTS = 60  # more than any draw has
UNWRITTEN, BEHIND = -7, 64
DRAWS = range(8)  # of lengths, at random
Rows = list[tuple[int, int, int, int]]

pytestmark = [
    pytest.mark.usefixtures("small_pieces"),
    # What a program has at once: one finds all parts, or several do, of which each finds four, two or one.
    pytest.mark.parametrize(("cells", "parts"), [(plan.CELLS, plan.PARTS), (16, 4)], ids=["one", "several"]),
]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch, cells: int, parts: int) -> None:
    """Tensors tell, too, what nobody wrote: in them, and in the memory behind them."""
    for name, value in (("PART", PART), ("CELLS", cells), ("PARTS", parts), ("Decodes", marked)):
        monkeypatch.setattr(plan, name, value)


def marked(*made: torch.Tensor) -> Decodes:
    return Decodes(
        *(each.new_full((each.numel() + BEHIND,), UNWRITTEN)[: each.numel()].view_as(each) for each in made)
    )


def memory(made: torch.Tensor) -> torch.Tensor:
    """All of it."""
    return made.as_strided((made.numel() + BEHIND,), (1,))


def tensor(numbers: list[int] | list[tuple[int, int]]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


def divided(lens: list[int], pairs: list[tuple[int, int]]) -> tuple[Rows, Rows]:
    """All decodes, and all parts of them."""
    decodes: Rows = []
    parts: Rows = []
    for sequence, row in pairs:
        decodes.append((sequence, row, lens[sequence], len(parts)))
        parts += [(sequence, row, lens[sequence], first) for first in range(0, lens[sequence], PART)]
    return decodes, parts


def check(made: Decodes, lens: list[int], pairs: list[tuple[int, int]], most_parts: int) -> None:
    decodes, parts = divided(lens, pairs)
    count = min(len(parts), most_parts)
    wanted: list[list[int]] = [
        [number for decode in decodes for number in decode],
        [number for part in parts[:count] for number in part] + [UNWRITTEN] * 4 * (most_parts - count),
        [count],
    ]
    assert made.most_parts == most_parts
    for got, want in zip((made.each, made.parts, made.count), wanted, strict=True):
        assert got.dtype == torch.int32
        assert memory(got).tolist() == want + [UNWRITTEN] * BEHIND


def context(query_lens: list[int], lens: list[int]) -> ForwardContext:
    starts = [sum(query_lens[:sequence]) for sequence in range(len(query_lens) + 1)]
    return ForwardContext(
        query_start=tensor(starts),
        context_lens=tensor(lens),
        block_tables=torch.zeros(len(lens), 1, dtype=torch.int32, device=DEVICE),
        slots=torch.zeros(sum(query_lens), dtype=torch.int64, device=DEVICE),
        query_lens=tuple(query_lens),
        lens=tuple(lens),
        block_size=16,
    )


def draw(chance: random.Random) -> list[int]:
    """Lengths of up to 10 sequences: none, a part's, and others, of up to 5 parts."""
    return [chance.choice([0, 1, PART, chance.randint(0, 5 * PART)]) for _ in range(chance.randint(1, 10))]


@pytest.mark.parametrize("paired", [False, True])
def test_parts_of_any_lengths_are_those_that_plain_python_finds(paired: bool) -> None:
    for seed in DRAWS:
        chance = random.Random(seed)
        lens = draw(chance)
        pairs = [(sequence, sequence) for sequence in range(len(lens))]
        if paired:
            chosen = chance.sample(range(len(lens)), chance.randint(1, len(lens)))
            pairs = [(sequence, chance.randrange(100)) for sequence in sorted(chosen)]
        parts = len(divided(lens, pairs)[1])
        for most_parts in {parts, parts + 5, parts // 2}:  # the last one: more parts than it says
            made = plan._divide(tensor(lens), tensor(pairs) if paired else None, most_parts)
            check(made, lens, pairs, most_parts)


def test_decodes_of_a_step_are_its_sequences_of_one_row() -> None:
    for seed in DRAWS:
        chance = random.Random(seed)
        # The first one is a decode; in the step of the first seed all are.
        query_lens = [1, *chance.choices([1, 2, 5] if seed else [1], k=chance.randrange(10))]
        lens = [rows + chance.randrange(4 * PART) for rows in query_lens]
        pairs = [(each, sum(query_lens[:each])) for each, rows in enumerate(query_lens) if rows == 1]
        made = decodes_of(context(query_lens, lens))
        assert made is not None
        check(made, lens, pairs, len(divided(lens, pairs)[1]))


def test_a_step_without_sequences_of_one_row_has_no_decodes() -> None:
    assert decodes_of(context([2, 3], [2, 9])) is None


def test_a_lasting_division_takes_the_lengths_from_the_device() -> None:
    """What its context tells Python is of another step."""
    for seed in DRAWS:
        lens = draw(random.Random(seed))
        recorded = context([1] * len(lens), [1] * len(lens))
        recorded.context_lens.copy_(tensor(lens))
        made = lasting_decodes(recorded, MOST_PARTS)
        check(made, lens, [(each, each) for each in range(len(lens))], MOST_PARTS)


def test_a_lasting_division_of_a_mixed_step_has_no_parts_of_other_sequences_than_decodes() -> None:
    for seed in DRAWS:
        chance = random.Random(seed)
        query_lens = chance.choices([0, 1, 2, 5], k=chance.randint(1, 10))
        lens = [rows + chance.randrange(4 * PART) for rows in query_lens]
        rows = [sum(query_lens[:each]) if rows == 1 else -1 for each, rows in enumerate(query_lens)]
        seen = [length if row >= 0 else 0 for length, row in zip(lens, rows, strict=True)]
        made = lasting_decodes(context(query_lens, lens), MOST_PARTS, mixed=True)
        check(made, seen, list(enumerate(rows)), MOST_PARTS)
