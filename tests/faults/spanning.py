"""Replicas whose two ranks lie on two nodes, a mixed load, and the loss of a rank. Run by `test_spanning.py`.

    python -m tests.faults.spanning placed FOLDER
    python -m tests.faults.spanning killed|frozen|orphaned|removed FOLDER ROUNDS

It is a process of its own, since a process can have one connection to one Ray cluster. The gateway is on the
first node. `placed`: Ray's own tables show the ranks where the deployment asks for them, and they answer.
`killed`, `frozen`: SIGKILL or SIGSTOP for the process of a rank. `orphaned`: SIGKILL for a replica, which its
other rank must not outlive. `removed`: the node of one rank is taken away, and a new one comes. Exits with 0
if no client noticed, and nothing remained.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.accounts import all_moved
from tests.faults.several_nodes import SeveralNodes, several_nodes
from tests.support.asks import connected
from tests.support.mixed_streams import ASKS, MixedStreams
from tests.support.replica_pair import MODEL, Pair, model_config, replica_pair, until_gone, wide_demo
from tests.support.several_ranks import divided_among

RANK: Final = "rank_slot"  # the resource of a node that a rank takes
LOST_S: Final = 10.0  # for both ranks of a replica to end
RESTART_S: Final = 120.0
STREAMS: Final = 16
AFTER_S: Final = 2.0  # that the load goes on


@dataclass(frozen=True)
class Ranks:
    """The processes of a replica, and their nodes, by Ray's own account."""

    replica: int
    other: int
    nodes: tuple[str, str]
    bundles: tuple[str, ...]  # the nodes of its placement group's bundles


def found() -> list[Ranks]:
    """The living replicas of the model that have both of their ranks."""
    from ray._private.state import actors
    from ray.util import placement_group_table

    from serve_app.deployments.model.ranks import RANK as RANK_NAME

    alive = {each["Name"]: each for each in actors().values() if each["State"] == "ALIVE" and each["Name"]}
    groups = {each["name"]: each for each in placement_group_table().values() if each["state"] == "CREATED"}
    whole = []
    for name, actor in alive.items():
        replica, _, number = name.removeprefix(RANK_NAME).rpartition("#")
        if not name.startswith(RANK_NAME) or replica not in alive or replica not in groups:
            continue
        assert number == "1"
        first, nodes = alive[replica], groups[replica]["bundles_to_node_id"]
        whole.append(
            Ranks(
                first["Pid"],
                actor["Pid"],
                (first["Address"]["NodeID"], actor["Address"]["NodeID"]),
                tuple(nodes[index] for index in sorted(nodes)),
            )
        )
    return whole


async def until_whole(pair: Pair, replicas: int) -> list[Ranks]:
    pids = await pair.until(replicas)
    async with asyncio.timeout(RESTART_S):
        while len(seen := [each for each in found() if each.replica in pids]) < replicas:
            await asyncio.sleep(0.1)
    return seen


async def lose_ranks(how: str, pair: Pair, nodes: SeveralNodes, rounds: int) -> set[int]:
    """Returns the processes of all ranks that there were at the start of a round or its end."""
    draw, since, processes = random.Random(54), time.time(), set[int]()
    async with connected(pair.url, pair.grpc, MODEL) as client:
        load = MixedStreams(client, ASKS[:STREAMS])
        await load.learn()
        for number in range(rounds):
            both = sorted(await until_whole(pair, 2), key=lambda each: each.replica)
            lost = draw.choice(both)
            async with load.running():
                await asyncio.sleep(draw.uniform(0.2, AFTER_S))
                if how == "removed":
                    place = lost.nodes[1 - number % 2]  # that of the other rank first
                    node = next(each for each in nodes.cluster.worker_nodes if each.node_id == place)
                    await asyncio.to_thread(nodes.cluster.remove_node, node, False)
                elif how == "orphaned":
                    os.kill(lost.replica, signal.SIGKILL)
                else:
                    os.kill(lost.other, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
                pair.killed.add(lost.replica)
                took = await until_gone({lost.replica, lost.other}, LOST_S)
                if how == "removed":
                    nodes.add({RANK: 1})  # here, since it sets a handler of signals
                both += await until_whole(pair, 2)
                await asyncio.sleep(AFTER_S)
            processes |= {pid for each in both for pid in (each.replica, each.other)}
            print(f"round {number}: both ranks gone after {took:.1f} s", flush=True)
    await all_moved(pair, load, since)
    return processes


async def lose_controller() -> None:
    """Serve's controller ends, and a new one finds the replicas by the names of all actors."""
    import ray
    from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

    controller = ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
    pid = now = await asyncio.to_thread(ray.get, controller.get_pid.remote())
    ray.kill(controller, no_restart=False)
    async with asyncio.timeout(RESTART_S):
        while now == pid:
            with suppress(ray.exceptions.RayActorError):
                now = await asyncio.to_thread(ray.get, controller.get_pid.remote())
            await asyncio.sleep(0.5)


async def show_placement(pair: Pair) -> set[int]:
    """Returns the processes of the ranks."""
    (one,) = await until_whole(pair, 1)
    assert one.nodes == one.bundles, one
    assert len(set(one.nodes)) == 2
    asked = {"model": MODEL, "prompt": "The capital of France", "max_tokens": 24, "temperature": 0}
    asked |= {"ignore_eos": True}
    answer = (await pair.client.post("/v1/completions", json=asked)).raise_for_status().json()
    print(f"ranks on {one.nodes}, bundles on {one.bundles}: {answer['choices'][0]['text']!r}")
    assert answer["usage"]["completion_tokens"] == 24
    await lose_controller()
    assert await until_whole(pair, 1) == [one]
    assert (await pair.client.post("/v1/completions", json=asked)).json()["choices"] == answer["choices"]
    return {one.replica, one.other}


def main(how: str, folder: Path, rounds: int) -> None:
    with several_nodes() as nodes:
        run_on(nodes, how, folder, rounds)


def run_on(nodes: SeveralNodes, how: str, folder: Path, rounds: int) -> None:
    # With a slot on each node, the loss of a node is that of one replica.
    for _ in range(4 if how == "removed" else 2):
        nodes.add({RANK: 1 if how == "removed" else 2})
    with divided_among(2):
        config = model_config(wide_demo(folder / "model"))
    places = {
        "model": {
            "ray_actor_options": {"num_cpus": 0.5},
            "placement_group_bundles": [{"CPU": 0.5, RANK: 1}, {"CPU": 0.5, RANK: 1}],
            "placement_group_strategy": "STRICT_SPREAD",
        },
        "gateway": nodes.gateway,
    }

    async def run() -> None:
        replicas = 1 if how == "placed" else 2
        async with replica_pair(nodes.url, config, folder / "usage", replicas=replicas, **places) as pair:
            if how == "placed":
                processes = await show_placement(pair)
            else:
                processes = await lose_ranks(how, pair, nodes, rounds)
        await until_gone(processes, LOST_S)  # the application is deleted

    asyncio.run(run())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)
