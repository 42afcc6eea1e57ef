"""The free memory of each node, measured there: Ray knows only reservations."""

from __future__ import annotations

import logging
import shutil
import subprocess
from typing import Final

import ray

from serve_app.control.endpoints.cluster import NodeRoom
from serve_app.deployments.control import ray_calls
from serve_app.deployments.memory import memory

logger = logging.getLogger(__name__)

NODE_S: Final = 10.0  # for all other nodes together
_SMI: Final = "nvidia-smi"
_SMI_S: Final = 5.0


def rooms() -> tuple[NodeRoom, ...]:
    """One entry for each living node; empty if one of them does not answer."""
    here = ray_calls.own_node()
    others = [str(node["NodeID"]) for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    found = ray_calls.on_nodes(dict.fromkeys(others, own_room), NODE_S)
    known = [each for each in found.values() if each is not None]
    return (own_room(), *known) if len(known) == len(others) else ()


def own_room() -> NodeRoom:
    """The entry of the node where this runs."""
    return NodeRoom(memory=memory().free, gpu_memory=_gpu_memory())


def _gpu_memory() -> tuple[int, ...]:
    """Bytes of each NVIDIA GPU, used or not."""
    if shutil.which(_SMI) is None:
        return ()
    query = [_SMI, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, check=True, timeout=_SMI_S).stdout
        return tuple(int(line) * 2**20 for line in listed.splitlines() if line.strip())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.warning("the memory of GPUs is not known: %s", error)
        return ()
