"""Collectives of ranks over gloo: the same bits in every rank, and in whichever way they travel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from serve_app.engine.ranks import group
from serve_app.engine.ranks.group import RankGroup

T = TypeVar("T")
CPU = torch.device("cpu")


def together(ranks: int, folder: Path, work: Callable[[RankGroup], T]) -> list[T]:
    """What `work` makes of each rank; all are threads of this process, over the loopback device."""

    def run(rank: int) -> T:
        return work(RankGroup(rank, ranks, folder / "meeting", CPU))

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(run, range(ranks)))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_have_the_same_bits_in_every_rank(
    ranks: int, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [torch.randn(5, 24, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(ranks)]
    wanted = parts[0].float()
    for part in parts[1:]:
        wanted = wanted + part.float()

    def total(rank: RankGroup) -> list[torch.Tensor]:
        few = rank.total(parts[rank.rank])
        rank.meet()
        monkeypatch.setattr(group, "MANY", 1)
        rank.meet()
        shared = rank.total(parts[rank.rank])
        alone = torch.cat([rank.total(row[None]) for row in parts[rank.rank]])
        return [few, shared, alone]

    for rank in together(ranks, tmp_path, total):
        assert all(torch.equal(each, wanted.to(dtype)) for each in rank)


def test_what_ranks_give_each_other(tmp_path: Path) -> None:
    def give(rank: RankGroup) -> tuple[torch.Tensor, torch.Tensor, int, int, bool, bool]:
        beside = rank.side_by_side(torch.full((1, 2, 3), float(rank.rank)))
        ids = torch.arange(4) + 10 * rank.rank
        rank.of_first(ids)
        words = rank.same("triton"), rank.same(f"rank {rank.rank}")
        return beside, ids, rank.smallest(7 - rank.rank), rank.share(900 - 30 * rank.rank), *words

    for beside, ids, smallest, share, same, others in together(3, tmp_path, give):
        assert beside.tolist() == [[[0, 0, 0, 1, 1, 1, 2, 2, 2]] * 2]
        assert ids.tolist() == [0, 1, 2, 3]
        assert (smallest, share, same, others) == (5, 280, True, False)


def test_nothing_travels_for_a_step_without_rows(tmp_path: Path) -> None:
    def give(rank: RankGroup) -> tuple[torch.Size, torch.Size]:
        return rank.total(torch.empty(0, 8)).shape, rank.side_by_side(torch.empty(1, 0, 8)).shape

    assert together(2, tmp_path, give) == [((0, 8), (1, 0, 16))] * 2
