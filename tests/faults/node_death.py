"""Three nodes, a mixed load, and the end of a node with a replica. Run by `test_node_death.py`.

    python -m tests.faults.node_death killed|frozen FOLDER

It is a process of its own, since a process can have one connection to one Ray cluster. The gateway lives
on the first node, and one replica on each of the others. `killed`: SIGKILL to everything on a node.
`frozen`: SIGSTOP, so that its connections stay open and silent, as those of a machine without power are;
and later SIGCONT. Exits with 0 if no client noticed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import psutil

from tests.support.asks import connected
from tests.support.mixed_streams import MixedStreams
from tests.support.ray_cluster import free_port
from tests.support.replica_pair import MODEL, Pair, model_config, replica_pair, wide_demo

GATEWAY: Final = "gateway_node"  # custom resources: who may live where
REPLICA: Final = "replica_node"
STORE_BYTES: Final = 80 * 2**20
ROUNDS_S: Final = 3.0  # of the load, before and after the loss
FROZEN_S: Final = 30.0


def family(node: Any) -> list[psutil.Process]:
    """All processes of a node of the cluster."""
    roots = [psutil.Process(info.process.pid) for infos in node.all_processes.values() for info in infos]
    return roots + [child for root in roots for child in root.children(recursive=True)]


def send(number: signal.Signals, processes: list[psutil.Process]) -> None:
    for process in processes:
        if process.is_running():
            process.send_signal(number)


async def lose_a_node(how: str, pair: Pair, workers: list[Any]) -> None:
    since = time.time()
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client)
        await load.learn()
        async with load.running():
            await asyncio.sleep(ROUNDS_S)
            processes = family(workers[0])
            (lost,) = await pair.pids() & {process.pid for process in processes}
            if how == "killed":
                send(signal.SIGKILL, processes)
            else:
                send(signal.SIGSTOP, processes)
                await asyncio.sleep(FROZEN_S)
                send(signal.SIGCONT, processes)
            pair.killed.add(lost)
            await pair.until(1)
            await asyncio.sleep(ROUNDS_S)
    await pair.until_idle()
    records = await pair.records(len(load.answers), since)
    assert {record.outcome for record in records} == {"finished"}
    made = sum(record.completion_tokens - record.discarded_tokens for record in records)
    assert made == sum(answer.tokens for _, answer in load.answers)
    moved = sum(record.migrations for record in records)
    assert moved > 0
    print(f"{len(records)} answers, {moved} moves: nobody noticed")


def main(how: str, folder: Path) -> None:
    import ray  # after `tests.support.ray_cluster`, which sets its environment
    from ray import serve
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "resources": {GATEWAY: 1}, **common}
    )
    workers = [cluster.add_node(num_cpus=2, resources={REPLICA: 1}, **common) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    config = model_config(wide_demo(folder / "model"))
    places = {
        "model": {"ray_actor_options": {"num_cpus": 0.5, "resources": {REPLICA: 0.6}}},
        "gateway": {"ray_actor_options": {"num_cpus": 0.1, "resources": {GATEWAY: 0.1}}},
    }

    async def run() -> None:
        async with replica_pair(f"http://127.0.0.1:{port}", config, folder / "usage", **places) as pair:
            await lose_a_node(how, pair, workers)

    try:
        asyncio.run(run())
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
