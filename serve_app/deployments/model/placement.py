"""Where the ranks of a replica lie: each on a GPU of one machine, or of a bundle of its placement group.

Without a placement group the ranks are processes of the replica's machine. With several bundles each other
rank is an actor in the bundle that has its GPU; `placement_group_strategy` decides which bundles share a
machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from serve_app.config import ModelConfig

CPU, GPU = "CPU", "GPU"  # Ray's names
Bundles: TypeAlias = Sequence[Mapping[str, float]]


def bundles_of_ranks(ranks: int, bundles: Bundles) -> list[int]:
    """The bundle of each rank, in their order: one rank for each GPU, or as many in each bundle without GPUs.

    Raises ValueError; the message says what to write.
    """
    gpus = [bundle.get(GPU, 0) for bundle in bundles]
    if not any(gpus):
        if ranks % len(bundles):
            raise ValueError(
                f"{len(bundles)} bundles do not divide the {ranks} ranks of the model; write as many bundles "
                "as ranks, or as machines"
            )
        return [index for index in range(len(bundles)) for _ in range(ranks // len(bundles))]
    if not all(each >= 1 and each == int(each) for each in gpus) or sum(gpus) != ranks:
        raise ValueError(
            f"the bundles have {_listed(gpus)} GPUs, and each of the {ranks} ranks of the model takes "
            "one; write as many bundles with `GPU: 1` as ranks, or one for each machine with its GPUs"
        )
    return [index for index, each in enumerate(gpus) for _ in range(int(each))]


def wrong_gpus(config: ModelConfig, gpus: float, bundles: Bundles = ()) -> str | None:
    """Why a replica of `config` cannot have this number of GPUs, and what to write; None if it can.

    `gpus`: of the replica's own actor. `bundles`: of its placement group, if it has several.
    """
    ranks = config.ranks
    if len(bundles) > 1 and ranks > 1:
        own = 1 if bundles[0].get(GPU) else 0
        return (
            None
            if gpus == own
            else f"{gpus:g} GPUs for the first of {ranks} ranks, of which each is an actor with its own; "
            f"write `num_gpus: {own}`"
        )
    if ranks > 1 and gpus not in (0, ranks):
        return (
            f"{gpus:g} GPUs for a replica: its model has {ranks} ranks, one on each GPU; write "
            f"`num_gpus: {ranks}`, or change `{config.divided_by}`"
        )
    if ranks == 1 and gpus > 1:
        return (
            f"{gpus:g} GPUs for a replica: its model runs on one; write `num_gpus: 1`, or less to share one, "
            f"and num_replicas for more GPUs, or divide the model among them by `tensor_parallel: {gpus:g}`"
        )
    return None


def no_place(gpus: float, bundles: Bundles, strategy: str, nodes: Sequence[float]) -> str | None:
    """Why a replica has no place even on idle machines, and what to write; None if it has one.

    `gpus`: of the replica's own actor. `nodes`: the GPUs of each machine. CPUs are not counted.
    """
    most = max(nodes, default=0)
    wanted = [bundle.get(GPU, 0) for bundle in bundles] or [gpus]
    if strategy == "STRICT_PACK":
        wanted = [sum(wanted)]
    if max(wanted) > most:
        hint = (
            "write `placement_group_bundles` with one bundle for each machine and its GPUs, or fewer ranks"
            if max(wanted) > 1
            else "add a machine with a GPU, or remove num_gpus"
        )
        return f"{max(wanted):g} GPUs on one machine, and the machine with the most has {most:g}; {hint}"
    free = sorted(nodes, reverse=True)
    for number in sorted(wanted, reverse=True):
        index = next((i for i, has in enumerate(free) if has >= number), None)
        if index is None:
            return (
                f"bundles of {_listed(wanted)} GPUs ({strategy or 'PACK'}), and the machines have "
                f"{_listed(nodes)}; change `placement_group_bundles` or `placement_group_strategy`, or add a "
                "machine"
            )
        free[index] = -1 if strategy == "STRICT_SPREAD" else free[index] - number
    return None


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{each:g}" for each in numbers)
