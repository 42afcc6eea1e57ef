"""A task's requests go to one replica, where its adapter probably is; Serve's router does the work.

A replica keeps the adapters that clients sent to it, and knows nothing of the others'. So tasks
are sorted into buckets, and a bucket is what Serve calls a multiplexed model: the router
prefers a replica that was sent weights of it, gives a new one to the replica with the fewest,
and passes by a busy or dead one; whoever gets the request then may ask for the weights. The
number of buckets is bounded, since Serve keeps every name that it ever saw.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from ray import serve
from ray.serve.handle import DeploymentHandle

from serve_app.types import GenerateRequest

_BUCKET_BYTES: Final = 1  # 256 buckets


def toward(handle: DeploymentHandle, request: GenerateRequest) -> DeploymentHandle:
    """The handle to call for `request`: its own, unless it is one of a task. Folders load anywhere."""
    if request.adapter is None or not request.adapter.is_task:
        return handle
    task = f"{request.adapter.name}@{request.salt}".encode("utf-8", "surrogatepass")
    bucket = blake2b(task, digest_size=_BUCKET_BYTES).hexdigest()
    return handle.options(multiplexed_model_id=bucket)


async def arrived(request: GenerateRequest) -> None:
    """In a replica, within its call: if `request` brings weights, its bucket is here from now on."""
    bucket = serve.get_multiplexed_model_id()
    if bucket and request.adapter is not None and request.adapter.weights is not None:
        await _keep(bucket)


@serve.multiplexed(max_num_models_per_replica=-1)  # type: ignore[untyped-decorator]
async def _keep(bucket: str) -> str:
    return bucket
