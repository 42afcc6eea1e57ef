"""The newest lines of replicas' own logs, from the files of this node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from serve_app.deployments.logs import PREFIX

MAX_BYTES: Final = 256 * 1024  # of one replica's log


def newest_lines(folder: Path, replicas: Iterable[Mapping[str, Any]]) -> str:
    """A chapter for each replica. `replicas`: as Serve's details have them; `folder`: this node's logs."""
    return "".join(
        f"== replica {each.get('replica_id', '')} on node {each.get('node_ip', '')}\n{_tail(folder, each)}"
        for each in replicas
    )


def _tail(folder: Path, replica: Mapping[str, Any]) -> str:
    theirs = folder / str(replica["log_file_path"]).lstrip("/")
    path = theirs.with_name(PREFIX + theirs.name)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_BYTES))
            data = file.read()
    except OSError:
        return f"(no lines on this node; its file is {path.name})\n"
    if size > MAX_BYTES:
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace")
