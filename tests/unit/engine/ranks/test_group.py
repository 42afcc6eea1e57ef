"""Collectives of ranks over gloo: the same bits in every rank, and in whichever way they travel."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import pytest
import torch

from serve_app.engine.ranks import group
from serve_app.engine.ranks.group import RankGroup
from serve_app.engine.ranks.store import RemoteStore, new_store, serve_store

T = TypeVar("T")
CPU = torch.device("cpu")


def together(ranks: int, work: Callable[[RankGroup], T], *, beside: int | None = None) -> list[T]:
    """What `work` makes of each rank; all are threads of this process, over the loopback device."""
    store = new_store()

    def client() -> RemoteStore:
        here, there = socket.socketpair()
        serve_store(store, here)
        return RemoteStore(there)

    stores = [store, *(client() for _ in range(1, ranks))]

    def run(rank: int) -> T:
        return work(RankGroup(rank, ranks, stores[rank], CPU, beside=beside))

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(run, range(ranks)))


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_have_the_same_bits_in_every_rank(
    ranks: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
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

    for rank in together(ranks, total):
        assert all(torch.equal(each, wanted.to(dtype)) for each in rank)


def test_what_ranks_give_each_other() -> None:
    def give(rank: RankGroup) -> tuple[torch.Tensor, torch.Tensor, int, int, bool, bool]:
        beside = rank.side_by_side(torch.full((1, 2, 3), float(rank.rank)))
        ids = torch.arange(4) + 10 * rank.rank
        rank.of_first(ids)
        words = rank.same("triton"), rank.same(f"rank {rank.rank}")
        return beside, ids, rank.smallest(7 - rank.rank), rank.share(900 - 30 * rank.rank), *words

    for beside, ids, smallest, share, same, others in together(3, give):
        assert beside.tolist() == [[[0, 0, 0, 1, 1, 1, 2, 2, 2]] * 2]
        assert ids.tolist() == [0, 1, 2, 3]
        assert (smallest, share, same, others) == (5, 280, True, False)


def test_nothing_travels_for_a_step_without_rows() -> None:
    def give(rank: RankGroup) -> tuple[torch.Size, torch.Size]:
        return rank.total(torch.empty(0, 8)).shape, rank.side_by_side(torch.empty(1, 0, 8)).shape

    assert together(2, give) == [((0, 8), (1, 0, 16))] * 2


def test_ranks_share_the_memory_of_the_machine_that_they_are_on() -> None:
    assert together(2, lambda rank: rank.share(900), beside=1) == [900, 900]


def test_a_rank_that_is_lost_keeps_nobody_waiting() -> None:
    """Also one whose machine closes no connection: here its thread makes no call."""
    lost = threading.Event()

    def wait(rank: RankGroup) -> bool:
        if rank.rank:
            return lost.wait(60)
        threading.Timer(0.2, rank.abort).start()
        try:
            rank.meet()
        except RuntimeError as error:
            return "is lost" in str(error)
        finally:
            lost.set()
        return False

    assert together(2, wait) == [True, True]


def test_a_key_that_nobody_sets_is_an_error_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    store.set_timeout(timedelta(milliseconds=100))
    here, there = socket.socketpair()
    serve_store(store, here)
    client = RemoteStore(there)
    with pytest.raises(RuntimeError, match="get"):
        client.get("missing")
    client.set("key", "value")
    assert (client.get("key"), client.check(["key"]), client.check(["missing"])) == (b"value", True, False)
    assert (client.add("count", 2), store.add("count", 3)) == (2, 5)
    here.shutdown(socket.SHUT_RDWR)
    with pytest.raises((RuntimeError, OSError)):
        client.get("key")
