"""A deploy file on its way into the launcher's Serve: in steps, until its gateways are ready."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from typing import Any, Final

from serve_app.deployments.launcher.errors import CannotServe
from serve_app.deployments.launcher.gateways import num_gateways
from serve_app.deployments.launcher.ports import address, reachable
from serve_app.deployments.launcher.ray_cluster import shortage

TIMEOUT_S: Final = 3_600.0  # of a step: a first start may download a model
POLL_S: Final = 0.1


def roll_out(
    config: dict[str, Any],
    say: Callable[[str], None],
    *,
    cancelled: Callable[[], str | None] = lambda: None,
    started: float | None = None,
) -> None:
    """Deploy `config`, a checked deploy file, and wait until all of it runs and its gateways are ready.

    `say` hears of every change, with the seconds since `started` (of `time.monotonic`; None: now).
    `cancelled` tells why to give up. Raises CannotServe.
    """
    from serve_app.deployments.rollout.rollout import RolloutFailed, rollout  # Ray comes with it

    since = time.monotonic() if started is None else started

    def timed(words: str) -> None:
        say(f"{words} ({time.monotonic() - since:.1f} s)")

    try:
        rollout(config, say=timed, timeout_s=TIMEOUT_S, cancelled=cancelled)
    except RolloutFailed as error:
        raise CannotServe(f"{error}{shortage()}") from error
    until_ready(*address(config), num_gateways(config), cancelled=cancelled)


def until_ready(
    host: str, port: int, gateways: int = 1, *, cancelled: Callable[[], str | None] = lambda: None
) -> None:
    """Wait until the `gateways` at `host` and `port` say that they are ready. Raises CannotServe.

    A new connection goes to the gateway that has the fewest, in turn where all have as many. So all are
    ready when so many in a row say so.
    """
    deadline = time.monotonic() + TIMEOUT_S
    in_a_row = 0
    while in_a_row < gateways:
        if _is_ready(host, port):
            in_a_row += 1
            continue
        in_a_row = 0
        if (reason := cancelled()) is not None:
            raise CannotServe(reason)
        if time.monotonic() > deadline:
            raise CannotServe("not every gateway was ready in time; see the log above")
        time.sleep(POLL_S)


def _is_ready(host: str, port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{reachable(host)}:{port}/readyz", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False
