"""Sends the requests of one adapter task to the same replica, which probably has the task's adapter.

A replica keeps the adapters that clients sent to it, and cannot use those of other replicas. So tasks are
hashed into buckets, and each bucket is what Serve calls a multiplexed model. Serve's router prefers replicas
that have the bucket's weights, and gives a new bucket to the replica with the fewest buckets. The router
skips busy and dead replicas; the replica that gets the request instead may then have to ask the client for
the weights. The number of buckets is bounded, since Serve keeps every name that it ever saw.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from ray import serve
from ray.serve.handle import DeploymentHandle

from serve_app.types import GenerateRequest

_BUCKET_BYTES: Final = 1  # 256 buckets


def toward(handle: DeploymentHandle, request: GenerateRequest) -> DeploymentHandle:
    """The handle to call for `request`: that of its task's bucket; if it has no task, `handle` itself.

    A request for an adapter in one of the operator's folders has no task, since every replica can load it.
    """
    if request.adapter is None or not request.adapter.is_task:
        return handle
    task = f"{request.adapter.name}@{request.salt}".encode("utf-8", "surrogatepass")
    bucket = blake2b(task, digest_size=_BUCKET_BYTES).hexdigest()
    return handle.options(multiplexed_model_id=bucket)


async def arrived(request: GenerateRequest) -> None:
    """If `request` contains weights, tell Serve that this replica now has its bucket.

    To be called in a replica, within the call of the request.
    """
    bucket = serve.get_multiplexed_model_id()
    if bucket and request.adapter is not None and request.adapter.weights is not None:
        await _keep(bucket)


@serve.multiplexed(max_num_models_per_replica=-1)  # type: ignore[untyped-decorator]
async def _keep(bucket: str) -> str:
    return bucket
