"""Replaces private parts of Ray and uvicorn so that a server starts sooner and uses less CPU when idle.

`SERVE_APP_LEAN_RAY=off` leaves Ray unchanged: a server also works without these changes, with the same
answers. Workers are forked from a template (`worker_template`, `worker_entry`), and run `event_server`. The
node leaves out processes that a private cluster does not need (`ray_node`). Only the launcher uses this.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

SWITCH: Final = "SERVE_APP_LEAN_RAY"


def start_template(folder: Path) -> None:
    """Start the template of workers, with its socket in `folder`; see `worker_template.start`."""
    from serve_app.deployments.lean_ray import worker_template

    if _is_on():
        worker_template.start(folder)


def lean_node() -> AbstractContextManager[None]:
    """Within the block, `ray.init` starts a `LeanNode`. This imports Ray."""
    from serve_app.deployments.lean_ray import ray_node

    return ray_node.lean() if _is_on() else nullcontext()


def _is_on() -> bool:
    return os.environ.get(SWITCH, "").lower() != "off"
