"""A deploy file on its way into a running Serve: handed over, and watched until it answers or fails."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Collection
from typing import Any, Final

from serve_app.deployments.launcher.ports import address, reachable
from serve_app.deployments.launcher.ray_cluster import shortage
from serve_app.deployments.launcher.say import CannotServe

TIMEOUT_S: Final = 3_600.0  # a first start may download a model
POLL_S: Final = 0.1
FAILED: Final = ("DEPLOY_FAILED", "UNHEALTHY")


def hand_over(schema: Any) -> None:
    """Make the applications of `schema` (ServeDeploySchema) what Serve runs; others leave. Does not wait."""
    from ray.serve.context import _get_global_client

    # What `serve run FILE` calls; there is no public function for a whole deploy file.
    _get_global_client().deploy_apps(schema, _blocking=False)


def roll_out(
    config: dict[str, Any],
    say: Callable[[str], None],
    *,
    cancelled: Callable[[], str | None] = lambda: None,
) -> None:
    """Deploy `config`, a checked deploy file, and wait until all of it runs and the gateway is ready.

    `say` hears of every change; `cancelled` tells why to give up. Raises CannotServe.
    """
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema.model_validate(config)
    names = [app.name for app in schema.applications]
    since, before = time.time(), set(_applications())
    hand_over(schema)
    for name in sorted(before - set(names)):
        say(f"{name}: leaves when its answers are out")
    wait(*address(config), names, say, since=since, cancelled=cancelled)


def wait(
    host: str,
    port: int,
    names: Collection[str],
    say: Callable[[str], None] = lambda words: None,
    *,
    since: float = 0.0,
    cancelled: Callable[[], str | None] = lambda: None,
) -> None:
    """Until the applications `names` run and the gateway at `host` and `port` says that it is ready.

    `since`: Unix seconds; an application that was deployed earlier is not yet what was handed over.
    Raises CannotServe.
    """
    started = time.monotonic()
    shown: dict[str, str] = {}
    while time.monotonic() - started < TIMEOUT_S:
        if (reason := cancelled()) is not None:
            raise CannotServe(reason)
        status = _applications()
        for name in names:
            app = status.get(name)
            if app is None or app.last_deployed_time_s < since:
                continue
            state = app.status.value
            if shown.get(name) != state:
                shown[name] = state
                say(f"{name}: {_words(state)} ({time.monotonic() - started:.0f} s)")
            if state in FAILED:
                raise CannotServe(f"application {name} failed.\n{_reason(app)}{shortage()}")
        if all(shown.get(name) == "RUNNING" for name in names) and _is_ready(host, port):
            return
        time.sleep(POLL_S)
    raise CannotServe("the models did not come up in time; see the log above")


def _is_ready(host: str, port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{reachable(host)}:{port}/readyz", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _applications() -> dict[str, Any]:
    from ray import serve

    return dict(serve.status().applications)


def _words(state: str) -> str:
    return state.lower().replace("_", " ")


def _reason(app: Any) -> str:
    """The last line of what went wrong: ours says what to do."""
    texts = [app.message, *(d.message for d in app.deployments.values())]
    lines = [line.strip() for text in texts for line in text.splitlines() if "Error" in line]
    return lines[-1] if lines else "\n".join(text for text in texts if text)
