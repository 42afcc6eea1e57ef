"""The collectives of the ranks of one model: NCCL between GPUs, gloo between processes on CPUs.

Sums are added in the order of ranks, in float32, from every rank's own numbers. So every rank has the same
bits, and a row's sum depends on no other row. Depends on tensors alone.
"""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Any, Final
from zlib import crc32

import torch
import torch.distributed

from serve_app.engine.ranks.launcher import LOOPBACK
from serve_app.engine.torch_cpu import few_threads

dist: Final[Any] = torch.distributed  # its declarations leave out some of what it has
# Of torch's own. A rank that is lost is noticed earlier, by its watch.
LIMIT: Final = timedelta(hours=1)
LOOK: Final = timedelta(seconds=1)  # between looks whether another rank is lost
MANY: Final = 2**18  # numbers for which bytes on the way take longer than another message


class RankGroup:
    """This process's place among the ranks of a model. All ranks make the same calls."""

    def __init__(
        self,
        rank: int,
        size: int,
        store: Any,
        device: torch.device,
        *,
        host: str = LOOPBACK,
        beside: int | None = None,
    ) -> None:
        """Returns when all ranks are here.

        `store`: torch's, the same for all of them. `host`: the address of this machine at which the others
        reach it. `beside`: the number of ranks on this machine; None: all.
        """
        self.rank, self.size, self._device = rank, size, device
        self.beside = size if beside is None else beside
        self._is_lost = False
        self._given: deque[tuple[Any, torch.Tensor]] = deque()  # and perhaps not taken yet
        self._store = store  # torch keeps only the part of it that is not Python
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = LIMIT
        self._hosts: Any = dist.ProcessGroupGloo(dist.PrefixStore("hosts", store), rank, size, options)
        self._devices: Any = self._hosts
        if device.type == "cuda":
            nccl = dist.ProcessGroupNCCL.Options()
            nccl._timeout = LIMIT
            self._devices = dist.ProcessGroupNCCL(dist.PrefixStore("devices", store), rank, size, nccl)
        self.meet()

    def total(self, part: torch.Tensor) -> torch.Tensor:
        """As of `Ranks`."""
        if not part.numel():
            return part
        if self.size == 2 or part.numel() < MANY or part.numel() % self.size:
            return _added(self._gather(part))
        # Each rank adds up its share and sends the sums: fewer bytes, and the same bits.
        shares = self._exchange(part.reshape(self.size, -1))
        return self._gather(_added(shares)).view(part.shape)

    def side_by_side(self, part: torch.Tensor) -> torch.Tensor:
        """As of `Ranks`."""
        if not part.numel():
            return part.new_empty(*part.shape[:-1], self.size * part.shape[-1])
        every = self._gather(part)
        return every.movedim(0, -2).reshape(*part.shape[:-1], -1)

    def of_first(self, tensor: torch.Tensor) -> None:
        """Overwrite `tensor`, contiguous and on the device, by that of rank 0."""
        self._finish(self._devices.broadcast([tensor], dist.BroadcastOptions()))

    def give(self, tensor: torch.Tensor, most: int) -> None:
        """As `of_first` in rank 0, without a wait unless the others lag behind by `most`. `tensor` must not
        change any more."""
        if len(self._given) >= most:
            self._finish(self._given.popleft()[0])
        self._given.append((self._devices.broadcast([tensor], dist.BroadcastOptions()), tensor))

    def meet(self) -> None:
        """Wait for all ranks."""
        self.smallest(0)

    def smallest(self, number: int) -> int:
        """The smallest of all ranks' numbers, on the host."""
        own, every = torch.tensor([number]), torch.empty(self.size, dtype=torch.int64)
        self._wait(self._hosts._allgather_base(every, own))
        return int(every.min())

    def share(self, free_bytes: int) -> int:
        """The free memory for which every rank may plan; ranks on CPUs share the memory of their machine."""
        return self.smallest(free_bytes // self.beside if self._device.type == "cpu" else free_bytes)

    def abort(self) -> None:
        """End whatever waits for another rank, in any thread, when a rank is lost."""
        self._is_lost = True
        if self._devices is not self._hosts:
            self._devices.abort()

    def same(self, words: str) -> bool:
        """Whether all ranks say the same words."""
        number = crc32(words.encode())
        return self.smallest(number) == -self.smallest(-number)

    def _finish(self, work: Any) -> None:
        """Wait for a collective of the devices; a GPU may still run it then."""
        if self._devices is self._hosts:
            self._wait(work)
        else:
            work.wait()

    def _wait(self, work: Any) -> None:
        """Wait for a collective of the hosts. Raises RuntimeError if a rank is lost.

        If a process ends, its connections close and collectives fail. Those of a lost machine stay open.
        """
        while not self._is_lost:
            try:
                work.wait(LOOK)
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # raises what it has failed by
                    return
        raise RuntimeError("another rank is lost")

    def _exchange(self, parts: torch.Tensor) -> torch.Tensor:
        """[ranks, N], a part for each rank -> [ranks, N], the parts that they have for this one."""
        theirs = torch.empty_like(parts)
        self._finish(self._devices.alltoall_base(theirs, parts, [], [], dist.AllToAllOptions()))
        return theirs

    def _gather(self, part: torch.Tensor) -> torch.Tensor:
        """[...] -> [ranks, ...], in memory of its own."""
        every = part.new_empty(self.size * part.numel())
        self._finish(self._devices._allgather_base(every, part.reshape(-1)))
        return every.view(self.size, *part.shape)


def _added(every: torch.Tensor) -> torch.Tensor:
    """[ranks, ...] -> [...], added in order."""
    with few_threads(every.device, every[0].numel()):
        whole = every[0].float()
        for other in every[1:]:
            whole += other
        return whole.to(every.dtype)
