"""The order of tokens: likeliest first, lowest id on ties, the same whatever the shape of the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.engine.kernels import SWITCH
from serve_app.engine.sampling.topk import NEVER, highest, largest

torch.set_num_threads(1)


def by_definition(row: torch.Tensor, k: int) -> list[int]:
    values = row.tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]


@given(st.integers(1, 400), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32))
def test_highest_is_the_lowest_id_of_the_maximum(width: int, rows: int, levels: int, seed: int) -> None:
    x = torch.randint(levels, (rows, width), generator=torch.Generator().manual_seed(seed)).float()
    value, ids = highest(x)
    assert ids.tolist() == [by_definition(row, 1)[0] for row in x]
    assert torch.equal(value, x.amax(-1))


@given(st.integers(1, 3000), st.integers(1, 40), st.sampled_from([2, 50, 10**6]), st.integers(0, 2**32))
def test_largest_is_the_head_of_a_stable_sort(width: int, k: int, levels: int, seed: int) -> None:
    x = torch.randint(levels, (3, width), generator=torch.Generator().manual_seed(seed)).float()
    values, ids = largest(x, k)
    assert ids.tolist() == [by_definition(row, k) for row in x]
    assert torch.equal(values, x.gather(1, ids))


@pytest.mark.parametrize("width", [5, 128, 130, 4099])
def test_highest_shows_a_nan_anywhere(width: int) -> None:
    x = torch.zeros(2, width)
    x[1, width - 2] = float("nan")
    value, _ = highest(x)
    assert value.isnan().tolist() == [False, True]


@given(
    st.integers(1, 90),
    st.lists(st.sampled_from([0.0, 1.5, -2.0, float("-inf"), float("inf"), float("nan")]), max_size=6),
    st.integers(0, 2**32),
)
@settings(max_examples=200, deadline=None)
def test_highest_is_the_same_with_and_without_kernels(width: int, odd: list[float], seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(3, width, generator=random)
    for number in odd:
        row, place = (int(torch.randint(size, (), generator=random)) for size in x.shape)
        x[row, place] = number
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, "off")
        plain, plain_ids = highest(x)
    value, ids = highest(x)
    torch.testing.assert_close(value, plain, rtol=0, atol=0, equal_nan=True)
    sound = ~plain.isnan()
    assert torch.equal(ids[sound], plain_ids[sound])
    assert x[torch.arange(3), ids].isnan().equal(~sound)


def test_highest_of_a_row_of_which_nothing_is_left_is_its_first_token() -> None:
    value, ids = highest(torch.full((2, 70), float("-inf")))
    assert (value.tolist(), ids.tolist()) == ([float("-inf")] * 2, [0, 0])


@pytest.mark.parametrize("width", [2_001, 32_001, 50_257])  # none fills its last block
@pytest.mark.parametrize("k", [1, 8, 20, 50])
def test_largest_of_a_row_with_few_possible_tokens_is_the_head_of_a_stable_sort(width: int, k: int) -> None:
    for seed in range(10):
        random = torch.Generator().manual_seed(seed)
        x = torch.full((3, width), NEVER)
        for row in x:
            possible = torch.randperm(width, generator=random)[: seed * (k + 2) // 10]
            row[possible] = torch.randn(len(possible), generator=random)
        x[0, width - 1], x[1, width - 1] = 1.0, float("nan")
        values, ids = largest(x, k)
        wanted, order = torch.sort(x, dim=-1, descending=True, stable=True)
        assert torch.equal(ids, order[:, :k])
        torch.testing.assert_close(values, wanted[:, :k], atol=0, rtol=0, equal_nan=True)


def test_a_row_with_nan_and_ties_leaves_the_others_alone() -> None:
    spoilt = torch.zeros(200)
    spoilt[:16], spoilt[-3:] = float("inf"), float("nan")
    whole = torch.arange(200.0)
    values, ids = largest(torch.stack([spoilt, whole]), 17)
    assert values[0].isnan().sum() == 3
    assert ids[1].tolist() == list(range(199, 182, -1))
