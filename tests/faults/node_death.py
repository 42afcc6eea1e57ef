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

from tests.faults.accounts import all_moved
from tests.faults.several_nodes import SeveralNodes, several_nodes
from tests.support.asks import connected
from tests.support.mixed_streams import MixedStreams
from tests.support.replica_pair import MODEL, Pair, model_config, replica_pair, wide_demo

REPLICA: Final = "replica_node"  # the resource of a node that a replica takes
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
    await all_moved(pair, load, since)


def main(how: str, folder: Path) -> None:
    with several_nodes() as nodes:
        run_on(nodes, how, folder)


def run_on(nodes: SeveralNodes, how: str, folder: Path) -> None:
    workers = [nodes.add({REPLICA: 1}) for _ in range(2)]
    config = model_config(wide_demo(folder / "model"))
    places = {
        "model": {"ray_actor_options": {"num_cpus": 0.5, "resources": {REPLICA: 0.6}}},
        "gateway": nodes.gateway,
    }

    async def run() -> None:
        async with replica_pair(nodes.url, config, folder / "usage", **places) as pair:
            await lose_a_node(how, pair, workers)

    asyncio.run(run())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
