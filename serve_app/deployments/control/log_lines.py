"""The newest lines of replicas' own logs, from files on the replicas' nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from serve_app.deployments.control import ray_calls
from serve_app.deployments.logs import PREFIX

MAX_BYTES: Final = 256 * 1024  # of one replica's log
MAX_BYTES_IN_ALL: Final = 4 * 2**20
NODE_S: Final = 15.0  # for all other nodes together; a worker of Ray's may have to start there

Replica = Mapping[str, Any]  # as Serve's details have one


def newest_lines(replicas: Sequence[Replica]) -> str:
    """One section for each replica, from every node. Blocks until the other nodes have read their files."""
    by_node: dict[str, list[Replica]] = defaultdict(list)
    for each in replicas:
        by_node[str(each.get("node_id") or "")].append(each)
    most = min(MAX_BYTES, MAX_BYTES_IN_ALL // max(len(replicas), 1))
    here = ray_calls.own_node()
    reads = {node: partial(tails, [_file(each) for each in theirs], most) for node, theirs in by_node.items()}
    found = ray_calls.on_nodes({node: read for node, read in reads.items() if node != here}, NODE_S)
    if here in reads:
        found = {**found, here: reads[here]()}
    return "".join(
        _chapter(each, ends[i] if (ends := found[node]) is not None else _SILENT)
        for node, theirs in by_node.items()
        for i, each in enumerate(theirs)
    )


def tails(files: Sequence[str], most: int) -> list[str | None]:
    """The last whole lines of each file on this node, `most` bytes per file at most. None: there is none."""
    folder = ray_calls.logs_folder()
    return [_tail(folder / each, most) for each in files]


_SILENT: Final = "(this node does not answer)\n"


def _chapter(replica: Replica, lines: str | None) -> str:
    node = replica.get("node_ip") or replica.get("node_id") or "unknown"
    text = f"(no lines; its file is {_file(replica)})\n" if lines is None else lines
    return f"== replica {replica.get('replica_id', '')} on node {node}\n{text}"


def _file(replica: Replica) -> str:
    """The path of the replica's own log, below the folder of its node's logs."""
    theirs = Path(str(replica["log_file_path"]).lstrip("/"))
    return str(theirs.with_name(PREFIX + theirs.name))


def _tail(path: Path, most: int) -> str | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            data = file.read()
    except OSError:
        return None
    if size > most:
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace")
