"""How many replicas a model needs: sequences in its engines against what they can batch.

Serve's own signal, requests per replica, is blind to what a request holds: one with
`n = 8` takes eight rows of a batch. A full batch is also where another replica starts
to help, so the target is a share of `max_sequences` and follows it when it changes.
Bounds, delays and smoothing are the `autoscaling_config` of the deployment.
"""

from __future__ import annotations

from typing import Any

from ray.serve.config import AutoscalingContext


def by_sequences(ctx: AutoscalingContext, target_load: float = 0.75) -> tuple[float, dict[str, Any]]:
    """Replicas at which the batches would be `target_load` full (0 < target_load <= 1).

    Counts running and waiting sequences of every replica, and the requests that still
    queue at handles as one sequence each.
    """
    metrics = ctx.aggregated_metrics or {}
    sequences = sum(metrics.get("sequences", {}).values()) + ctx.total_queued_requests
    capacity = max(metrics.get("max_sequences", {}).values(), default=0.0)
    if capacity <= 0:  # no replica has reported yet
        return ctx.target_num_replicas, {}
    return sequences / (capacity * target_load), {}
