"""Log-probabilities of the raw distribution."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from serve_app.engine.sampling.logprobs import ROWS_AT_ONCE, RawLogprobs, prompt_logprobs

torch.set_num_threads(1)


@given(st.integers(1, 300), st.integers(0, 20), st.sampled_from([2, 5, 10**6]), st.integers(0, 2**32))
def test_alternatives_are_the_likeliest_and_the_lowest_ids_of_equals(
    width: int, num_top: int, levels: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(levels, (3, width), generator=generator).float() / levels
    next_ids = torch.randint(width, (3,), generator=generator).tolist()
    expected = torch.log_softmax(x.double(), -1).tolist()
    for row, entry in enumerate(prompt_logprobs(x, next_ids, num_top)):
        values = expected[row]
        every = sorted(range(width), key=lambda i: (-values[i], i))
        order = every[:num_top]
        assert entry.token_id == next_ids[row]
        assert entry.rank == 1 + every.index(next_ids[row])
        assert entry.logprob == pytest.approx(values[next_ids[row]], abs=1e-9)
        assert [t.token_id for t in entry.top] == order
        assert [t.logprob for t in entry.top] == pytest.approx([values[i] for i in order], abs=1e-9)


def test_a_long_prompt_is_read_part_by_part() -> None:
    x, next_ids = torch.randn(2 * ROWS_AT_ONCE + 3, 30), [7] * (2 * ROWS_AT_ONCE + 3)
    entries = prompt_logprobs(x, next_ids, 2)
    raw = RawLogprobs(x, [2] * len(next_ids))
    assert [replace(entry, rank=None) for entry in entries] == raw.at(next_ids)
    assert [entry.rank for entry in entries] == raw.ranks(next_ids)


def test_rows_may_want_different_numbers_of_alternatives() -> None:
    entries = RawLogprobs(torch.randn(3, 50), [0, 20, 3]).at([1, 2, 3])
    assert [len(e.top) for e in entries] == [0, 20, 3]


def test_impossible_tokens_are_not_alternatives() -> None:
    x = torch.full((1, 60), float("-inf"))
    x[0, [4, 50]] = torch.tensor([0.0, math.log(3.0)])
    (entry,) = prompt_logprobs(x, [0], 20)
    assert entry.logprob == float("-inf")
    assert [(t.token_id, round(math.exp(t.logprob), 6)) for t in entry.top] == [(50, 0.75), (4, 0.25)]


def test_a_prompt_row_that_is_not_finite_harms_no_other() -> None:
    x = torch.randn(3, 40)
    clean = prompt_logprobs(x, [1, 2, 3], 5)
    x[1, 7] = float("nan")
    dirty = prompt_logprobs(x, [1, 2, 3], 5)
    assert math.isnan(dirty[1].logprob)
    assert [dirty[0], dirty[2]] == [clean[0], clean[2]]


def test_no_positions_need_no_work() -> None:
    assert prompt_logprobs(torch.empty(0, 40), [], 5) == []
