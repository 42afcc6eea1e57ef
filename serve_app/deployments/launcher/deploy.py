"""Deploys a deploy file to the launcher's Serve in steps, until its gateways are ready."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any, Final

from serve_app.deployments.launcher.errors import CannotServe
from serve_app.deployments.launcher.gateways import num_gateways
from serve_app.deployments.launcher.ports import address, reachable
from serve_app.deployments.launcher.ray_cluster import shortage

TIMEOUT_S: Final = 3_600.0  # of a step: a first start may download a model
READY_S: Final = 600.0  # for gateways once all runs: a database may appear, or be repaired, later
POLL_S: Final = 0.1
SILENT_S: Final = 5.0  # shorter delays of gateways are not reported
WAITS: Final = f"waiting {READY_S / 60:.0f} minutes at most; Ctrl-C of the server ends it"
NO_ANSWER: Final = "no gateway answers"
UNTOLD: Final = "/readyz says why to those who have an API key"


def roll_out(
    config: dict[str, Any],
    say: Callable[[str], None],
    *,
    cancelled: Callable[[], str | None] = lambda: None,
    started: float | None = None,
) -> None:
    """Deploy `config`, a checked deploy file, and wait until all of it runs and its gateways are ready.

    `say` gets a line for every change, with the seconds since `started` (of `time.monotonic`; None: now).
    `cancelled` returns the reason to give up, if there is one. Raises CannotServe.
    """
    from serve_app.deployments.rollout.rollout import RolloutFailed, rollout  # Ray comes with it

    since = time.monotonic() if started is None else started

    def timed(words: str) -> None:
        say(f"{words} ({time.monotonic() - since:.1f} s)")

    try:
        rollout(config, say=timed, timeout_s=TIMEOUT_S, cancelled=cancelled)
    except RolloutFailed as error:
        raise CannotServe(f"{error}{shortage()}") from error
    until_ready(*address(config), num_gateways(config), say=timed, cancelled=cancelled)


def until_ready(
    host: str,
    port: int,
    gateways: int = 1,
    *,
    say: Callable[[str], None] = lambda words: None,
    cancelled: Callable[[], str | None] = lambda: None,
) -> None:
    """Wait until the `gateways` at `host` and `port` are ready. Raises CannotServe.

    A new connection goes to the gateway with the fewest connections; if several have equally few, they take
    turns. So all gateways are ready when as many ready answers have come in a row as there are gateways.
    `say` gets each reason for a delay only once.
    """
    began = time.monotonic()
    said: set[str] = set()
    in_a_row = 0
    while in_a_row < gateways:
        reasons = _reasons(host, port)
        if not reasons:
            in_a_row += 1
            continue
        in_a_row = 0
        if (reason := cancelled()) is not None:
            raise CannotServe(reason)
        waited_s = time.monotonic() - began
        if waited_s > READY_S:
            raise CannotServe("\n".join(("not every gateway was ready in time:", *reasons)))
        if waited_s > SILENT_S:
            new = [each for each in reasons if each not in said]
            for words in new:
                say(f"not ready yet: {words}")
            if new and not said:
                say(WAITS)
            said.update(new)
        time.sleep(POLL_S)


def _reasons(host: str, port: int) -> Sequence[str]:
    """The reasons why the gateway that answers the request is not ready; empty if it is ready."""
    try:
        with urllib.request.urlopen(f"http://{reachable(host)}:{port}/readyz", timeout=2):
            return ()
    except urllib.error.HTTPError as answer:
        with answer:
            try:
                return json.loads(answer.read()).get("reasons") or (UNTOLD,)
            except (OSError, ValueError, AttributeError):  # not a gateway's
                return (NO_ANSWER,)
    except OSError:
        return (NO_ANSWER,)
