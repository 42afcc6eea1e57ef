"""A cluster of several nodes on this machine, with Serve: the gateway has a node of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.support.ray_cluster import free_port

GATEWAY: Final = "gateway_node"  # the resource of the gateway's node
STORE_BYTES: Final = 80 * 2**20
COMMON: Final = {"object_store_memory": STORE_BYTES, "include_dashboard": False}


@dataclass(frozen=True, slots=True)
class SeveralNodes:
    cluster: Any  # Ray's own, for tests
    port: int  # of HTTP

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def gateway(self) -> dict[str, Any]:
        """The settings of the gateway's deployment, which let it run on its node."""
        return {"ray_actor_options": {"num_cpus": 0.1, "resources": {GATEWAY: 0.1}}}

    def add(self, resources: Mapping[str, float]) -> Any:
        """A further node."""
        return self.cluster.add_node(num_cpus=2, resources=dict(resources), **COMMON)


@contextmanager
def several_nodes() -> Iterator[SeveralNodes]:
    """With the node of the gateway. A process can do this once, since it has one connection with Ray."""
    import ray  # after `tests.support.ray_cluster`, which sets its environment
    from ray import serve
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 4, "resources": {GATEWAY: 1}, **COMMON}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        nodes = SeveralNodes(cluster, free_port())
        serve.start(http_options={"host": "127.0.0.1", "port": nodes.port}, proxy_location="HeadOnly")
        yield nodes
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()
