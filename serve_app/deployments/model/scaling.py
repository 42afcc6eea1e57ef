"""Chooses the number of a model's replicas, by the load of its engines.

Serve's own signal, requests per replica, does not reflect the cost of a request. A request with `n = 8` takes
eight rows of a batch, and a long document takes seconds of prefill and much of the cache. An engine is full
if its batch is full, if its cache is full, or if prompts wait too long. The largest of these three shares is
the engine's load. Serve still applies the bounds and delays in the deployment's `autoscaling_config`. Serve
also handles the start from zero: if a request waits and no replica runs, Serve starts a replica at once
without asking a policy.

Serve ships this module to its controller by value, so it imports nothing of ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from ray.serve.config import AutoscalingContext

# The fields of a replica's report: see `workload.py`, and `ModelReplica.record_autoscaling_stats`.
SEQUENCES: Final = "sequences"  # running and waiting
MAX_SEQUENCES: Final = "max_sequences"  # in one batch
CACHE_USE: Final = "cache_use"  # share of the KV cache in use, 0 .. 1
PROMPT_WAIT: Final = "prompt_wait_s"  # seconds until all present prompts are computed


class ByLoad:
    """A policy that keeps replicas between `low` and `high` full; 0 < low < high <= 1.

    Replicas are added if the present number of replicas would be more than `high` full. Replicas are removed
    only if the remaining ones would then be less than `low` full, so a load that wavers between the two
    bounds changes nothing. `target_wait_s` (> 0) is the wait for prompts at which a replica counts as full.
    The arguments are the policy's `policy_kwargs` in a deploy file.
    """

    def __init__(self, high: float = 0.75, low: float = 0.5, target_wait_s: float = 2.0) -> None:
        """Raises ValueError with the wrong argument's name and its range."""
        if not 0 < high <= 1:
            raise ValueError(f"high: must be above 0 and at most 1, not {high}")
        if not 0 < low < high:
            raise ValueError(f"low: must be above 0 and below high ({high}), not {low}")
        if not 0 < target_wait_s < math.inf:
            raise ValueError(f"target_wait_s: must be a number of seconds above 0, not {target_wait_s}")
        self._high = high
        self._low = low
        self._target_wait_s = target_wait_s

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """The number of replicas wanted (at least 0, before Serve applies its bounds), and an empty state.

        A request that is still queued at a gateway counts as one sequence.
        """
        reports = _by_replica(ctx.aggregated_metrics or {})
        batch = max((report[MAX_SEQUENCES] for report in reports), default=0.0)
        if batch <= 0:  # no replica has reported yet
            return ctx.target_num_replicas, {}
        queued = ctx.total_queued_requests
        load = sum(map(self._load, reports)) + queued / batch
        # However long its prompt, a sequence runs on one replica.
        useful = math.ceil(sum(report[SEQUENCES] for report in reports) + queued)
        fewest = min(math.ceil(load / self._high), useful)
        most = min(math.ceil(load / self._low), useful)
        return max(fewest, min(ctx.target_num_replicas, most)), {}

    def _load(self, report: Mapping[str, float]) -> float:
        """The load of a replica: 0 is idle, 1 is full; above 1, requests are waiting."""
        return max(
            report[SEQUENCES] / report[MAX_SEQUENCES],
            report[CACHE_USE],
            report[PROMPT_WAIT] / self._target_wait_s,
        )


def _by_replica(metrics: Mapping[str, Mapping[Any, float]]) -> list[dict[str, float]]:
    """Turns Serve's metrics, which are by name, into reports by replica; incomplete reports are left out."""
    names = (SEQUENCES, MAX_SEQUENCES, CACHE_USE, PROMPT_WAIT)
    columns = [metrics.get(name, {}) for name in names]
    replicas = set(columns[0]).intersection(*columns[1:])
    return [
        {name: column[replica] for name, column in zip(names, columns, strict=True)} for replica in replicas
    ]
