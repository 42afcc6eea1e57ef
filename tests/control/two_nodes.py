"""Two nodes, a replica on the second one, and its log read from the first. Run by `test_replica_logs.py`.

A process of its own, since a process can have one connection to one Ray cluster. Exits with 0 if all held.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Final

from tests.support.ray_cluster import free_port

APP: Final = "far"
SECOND: Final = "second_node"  # a custom resource, which the second node alone has
STORE_BYTES: Final = 80 * 2**20
WAIT_S: Final = 90.0


class Speaker:
    """Logs one line, as a model's replica does."""

    def __init__(self) -> None:
        from serve_app.deployments.control.ray_calls import own_node
        from serve_app.deployments.logs import log_as_json

        log_as_json()
        logging.getLogger("serve_app.speaker").info("hello from %s", own_node())

    def leave(self) -> None:
        os._exit(1)


def main() -> None:
    import ray  # after `tests.support.ray_cluster`, which sets its environment
    from ray import serve
    from ray.cluster_utils import Cluster

    from serve_app.deployments.control.cluster import MODEL, logged_replicas
    from serve_app.deployments.control.log_lines import newest_lines
    from serve_app.deployments.control.ray_calls import own_node

    common = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, **common})
    second = cluster.add_node(num_cpus=2, resources={SECOND: 1}, **common)
    ray.init(address=cluster.address, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": free_port()}, proxy_location="HeadOnly")
    try:
        deployment = serve.deployment(Speaker).options(
            name=MODEL, ray_actor_options={"num_cpus": 0, "resources": {SECOND: 0.1}}
        )
        serve.run(deployment.bind(), name=APP, route_prefix=None)
        (replica,) = logged_replicas(APP)
        assert replica["node_id"] == second.node_id != own_node()
        assert f"hello from {second.node_id}" in newest_lines([replica])
        cluster.remove_node(second)
        before = time.monotonic()
        told = newest_lines([replica])
        print(f"a node that is gone: {time.monotonic() - before:.1f} s")
        assert "this node does not answer" in told or "no lines" in told, told
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
