"""Whether the cluster has room for new replicas: CPUs, GPUs and memory. Pure logic.

Compares a lower bound of the memory needed with the memory free at this moment. A configuration that is
refused could not have started. An accepted one may still fail, and its update then reports that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from serve_app.config import ModelConfig
from serve_app.control.endpoints.cluster import NodeRoom, Room
from serve_app.control.endpoints.state import AppSpec
from serve_app.errors import InvalidField

LeastMemory = Callable[[ModelConfig], int | None]  # the fewest bytes of a replica; None: unknown

GROWS: Final = "(where the cluster grows by itself, set `control.check_resources: false`)"


@dataclass(frozen=True, slots=True)
class _Need:
    """New replicas of one application."""

    spec: AppSpec
    replicas: int
    config: ModelConfig


def check_room(
    specs: Iterable[AppSpec],
    running: Mapping[str, AppSpec],
    room: Room,
    least_memory: LeastMemory,
    field: str,
) -> None:
    """Raises InvalidField for `field` if there is no room for the replicas that `specs` add to `running`."""
    needs = [
        _Need(spec, more, ModelConfig.model_validate(spec.model))
        for spec in specs
        if (more := spec.min_replicas - _replicas(running.get(spec.name))) > 0
    ]
    _check_units(needs, room, field)
    if room.nodes:
        for need in needs:
            _check_nodes(need, room.nodes, field)
            _check_memory(need, room.nodes, least_memory(need.config), field)


def _replicas(spec: AppSpec | None) -> int:
    return 0 if spec is None else spec.min_replicas


def _check_units(needs: list[_Need], room: Room, field: str) -> None:
    wanted = {
        "CPU": sum(need.replicas * need.spec.all_cpus for need in needs),
        "GPU": sum(need.replicas * need.spec.all_gpus for need in needs),
    }
    for kind, count in wanted.items():
        free = room.free.get(kind, 0.0)
        if count > free + 1e-6:
            raise InvalidField(
                field,
                f"the new replicas need {count:g} {kind}s and {free:g} are free; ask for less, delete an "
                f"endpoint, or add a node {GROWS}",
            )


def _check_nodes(need: _Need, nodes: tuple[NodeRoom, ...], field: str) -> None:
    """The GPUs of one process are on one node."""
    most = max(len(node.gpu_memory) for node in nodes)
    if 0 < most < need.spec.num_gpus:
        raise InvalidField(
            field,
            f"a replica of {need.config.name!r} needs {need.spec.num_gpus:g} GPUs on one node, and the node "
            f"with the most has {most}; divide its ranks among nodes by `placement_group_bundles`, or choose "
            f"a smaller `{need.config.divided_by}` {GROWS}",
        )


def _check_memory(need: _Need, nodes: tuple[NodeRoom, ...], least: int | None, field: str) -> None:
    if not least:
        return
    share = min(need.config.engine.gpu_share or need.spec.num_gpus, 1.0)
    ranks = need.config.ranks if need.spec.num_gpus else 1
    if need.spec.num_gpus:
        frees = [int(total * share) for node in nodes for total in node.gpu_memory]
        where, what = "GPU", "has" if share == 1.0 else f"leaves it {share:g} of its memory, which is"
    else:
        frees = [node.memory for node in nodes]
        where, what = "node", "has free"
    if frees and sum(free * ranks // least for free in frees) < need.replicas * ranks:
        raise InvalidField(
            field,
            f"a replica of {need.config.name!r} needs at least {_shown(least)} of memory for its weights and "
            f"cache, {need.replicas} of them are to start, and the {where} with the most {what} "
            f"{_shown(max(frees))}; choose a smaller model or dtype, or fewer replicas, delete "
            f"an endpoint, or add a node {GROWS}",
        )


def _shown(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
