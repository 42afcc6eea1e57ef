"""Private parts of Ray and of uvicorn replaced, so that a server starts sooner and idles with less CPU.

`SERVE_APP_LEAN_RAY=off` leaves Ray as it is: a server does without any of this, and its answers are the
same. Workers are copies of a template (`worker_template`, `worker_entry`), which run `event_server`. The
node leaves out processes that a private cluster has no use for (`ray_node`). Only the launcher uses this.
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
    """Inside, `ray.init` starts a `LeanNode`; imports Ray."""
    from serve_app.deployments.lean_ray import ray_node

    return ray_node.lean() if _is_on() else nullcontext()


def _is_on() -> bool:
    return os.environ.get(SWITCH, "").lower() != "off"
