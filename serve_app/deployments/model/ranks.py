"""The other ranks of a replica as actors of Ray, in the bundles of the replica's placement group.

The replica's process owns them: Ray ends them when it ends, and Serve removes the group. A rank also ends by
itself when its connections with rank 0 close (see `engine/ranks/life.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, get_current_placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from serve_app.config import ModelConfig
from serve_app.deployments.logs import log_as_json
from serve_app.deployments.memory import be_expendable
from serve_app.deployments.model.placement import GPU, Bundles, bundles_of_ranks
from serve_app.heap import collects_later
from serve_app.models.errors import ModelLoadError

logger = logging.getLogger(__name__)

# Before the name of a rank's replica and its number. A controller of Serve that restarts takes every
# actor for a replica if its name begins as that of one.
RANK: Final = "MODEL_RANK::"


class Rank:
    """The actor of a rank from 1 on."""

    def run(self, invitation: bytes, rank: int, source: str, revision: str | None) -> int:
        """Be `rank` until rank 0 ends it; returns the exit status. `source`, `revision`: as of `follow`."""
        log_as_json()
        be_expendable()
        with collects_later():
            from serve_app.replica.ranks.follower import follow
        return follow(invitation, rank, source, revision)


class ActorRanks:
    """As `engine.ranks.launcher.Launcher`."""

    def __init__(self, config: ModelConfig, group: PlacementGroup, name: str) -> None:
        """`group`: of this replica, whose actor has this `name`.

        Raises ModelLoadError if the ranks do not fit into the bundles.
        """
        self._source, self._revision, self._group, self._name = config.source, config.revision, group, name
        self._bundles: Bundles = group.bundle_specs
        try:
            self._bundle_of = bundles_of_ranks(config.ranks, self._bundles)
        except ValueError as error:
            raise ModelLoadError(f"{config.name}: placement_group_bundles: {error}") from error
        self._actors: dict[int, Any] = {}
        self._runs: dict[int, Any] = {}

    @property
    def host(self) -> str:
        return str(ray.util.get_node_ip_address())

    def start(self, ranks: Iterable[int], invitation: bytes) -> None:
        for rank in ranks:
            index = self._bundle_of[rank]
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            actor = self._actors[rank] = (
                ray.remote(Rank)
                .options(
                    name=f"{RANK}{self._name}#{rank}",
                    num_cpus=0,  # the bundle has them
                    num_gpus=1 if self._bundles[index].get(GPU) else 0,
                    scheduling_strategy=strategy,
                )
                .remote()
            )
            self._runs[rank] = actor.run.remote(invitation, rank, self._source, self._revision)

    def place(self, rank: int) -> str:
        index = self._bundle_of[rank]
        node = placement_group_table(self._group)["bundles_to_node_id"].get(index) or "no node"
        return f"an actor in bundle {index} {dict(self._bundles[index])} on {node}"

    def ended(self) -> Mapping[int, str]:
        ready, _ = ray.wait(list(self._runs.values()), num_returns=len(self._runs), timeout=0)
        return {rank: _outcome(run) for rank, run in self._runs.items() if run in ready}

    def end(self, wait_s: float = 0.0) -> None:
        if wait_s and self._runs:
            ray.wait(list(self._runs.values()), num_returns=len(self._runs), timeout=wait_s)
        # Aside: a control store that does not answer delays nothing that waits for this.
        threading.Thread(target=self._kill, name="end of ranks", daemon=True).start()

    def _kill(self) -> None:
        for rank, actor in self._actors.items():
            try:
                ray.kill(actor)
            except (RayError, ValueError, RuntimeError) as error:
                logger.warning("rank %d is left to Ray, which ends it with this replica: %s", rank, error)


def _outcome(run: Any) -> str:
    try:
        return f"ended with status {ray.get(run)}"
    except RayError as error:
        return f"ended: {str(error).strip().splitlines()[0]}"


def own_bundles() -> Bundles:
    """The bundles of this process's placement group; none without one."""
    group = get_current_placement_group()
    return () if group is None else group.bundle_specs


def actor_ranks(config: ModelConfig) -> ActorRanks | None:
    """The launcher of this replica's ranks, if its placement group has several bundles; else None.

    Raises ModelLoadError.
    """
    group = get_current_placement_group()
    if config.ranks == 1 or group is None or len(group.bundle_specs) < 2:
        return None
    return ActorRanks(config, group, ray.get_runtime_context().get_actor_name() or config.name)
