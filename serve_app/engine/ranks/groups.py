"""The groups of ranks that one rank belongs to: all ranks, those with the same layers, and its neighbours.

A model may be divided among stages, each with some of the layers. Rank 0 and those after it are the last
stage, which samples; the ranks of the first stage are the last ones. A rank has a neighbour in the stage
before, and one in the stage behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from serve_app.engine.ranks.group import RankGroup, dist

# (name, rank, size) -> the group of these ranks, once all of them are here
Meet = Callable[[str, int, int], RankGroup]


@dataclass(frozen=True, slots=True)
class RankGroups:
    """As `forward.Line`, too: hidden states travel in float32, which holds every type that layers run in."""

    every: RankGroup
    stage: RankGroup  # those with the same layers
    before: RankGroup | None  # with the same rank of the stage before, which is the first of the two
    behind: RankGroup | None
    stages: int

    @classmethod
    def of(cls, rank: int, ranks: int, stages: int, meet: Meet) -> RankGroups:
        """Returns when all `ranks` are here."""
        every = meet("every", rank, ranks)
        if stages == 1:
            return cls(every, every, None, None, 1)
        each = ranks // stages
        stage = meet(f"stage {rank // each}", rank % each, each)
        before, behind = rank + each, rank - each
        return cls(
            *(every, stage),
            before=meet(f"after {before}", 1, 2) if before < ranks else None,
            behind=meet(f"after {rank}", 0, 2) if behind >= 0 else None,
            stages=stages,
        )

    def enter(self, states: torch.Tensor) -> torch.Tensor:
        if self.before is None:
            return states
        theirs = torch.empty(states.shape, dtype=torch.float32, device=states.device)
        self.before.of_first(theirs)
        return theirs.to(states.dtype)

    def leave(self, states: torch.Tensor) -> None:
        if self.behind is not None:
            self.behind.give(states.detach().to(torch.float32, copy=True).contiguous(), self.stages)

    @property
    def is_last(self) -> bool:
        return self.behind is None

    def abort(self) -> None:
        """As of each group."""
        for group in (self.every, self.stage, self.before, self.behind):
            if group is not None:
                group.abort()


def joined(rank: int, hosts: Sequence[str], store: Any, device: torch.device, stages: int) -> RankGroups:
    """The groups of a rank by their collectives; `hosts` of all ranks, `store` as of `RankGroup`."""
    host = hosts[rank]

    def meet(name: str, number: int, size: int) -> RankGroup:
        own = dist.PrefixStore(name, store)
        return RankGroup(number, size, own, device, host=host, beside=hosts.count(host))

    return RankGroups.of(rank, len(hosts), stages, meet)
