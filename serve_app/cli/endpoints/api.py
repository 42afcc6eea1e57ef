"""Endpoints of a server over its management API: paths, and readers of an endpoint's JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from serve_app.cli.output import printable
from serve_app.cli.server import Server, ServerError

ROOT: Final = "/api/2.0/serving-endpoints"
POLL_S: Final = 1.0

Endpoint = Mapping[str, Any]


def path_of(name: str, *rest: str) -> str:
    """The path of an endpoint, or of something below it."""
    return "/".join([ROOT, *(quote(part, safe="") for part in (name, *rest))])


def read(server: Server, name: str) -> Endpoint:
    """Raises ServerError."""
    return server.read(path_of(name))


def running_rollout(server: Server, name: str) -> str | None:
    """The entity that a running rollout of the endpoint moves traffic to, or None. Raises ServerError."""
    try:
        rollout = server.read(path_of(name, "rollout"))
    except ServerError as error:
        if error.status == HTTPStatus.NOT_FOUND:  # the endpoint has had no rollout
            return None
        raise
    return str(rollout["entity"]) if rollout["state"] == "RUNNING" else None


def config_of(endpoint: Endpoint) -> Mapping[str, Any]:
    """The configuration that is serving, or else the one that is starting; empty if there is none."""
    found: Mapping[str, Any] = endpoint.get("config") or endpoint.get("pending_config") or {}
    return found


def update_state(endpoint: Endpoint) -> str:
    """The state of the newest configuration."""
    return str(endpoint.get("state", {}).get("config_update", ""))


def progress_of(endpoint: Endpoint) -> list[str]:
    """One line for each entity of the configuration that is starting, or else of the one that is serving."""
    config = endpoint.get("pending_config") or endpoint.get("config") or {}
    lines = []
    for entity in config.get("served_entities", ()):
        state = entity.get("state", {})
        word = str(state.get("deployment", "")).removeprefix("DEPLOYMENT_").lower()
        message = state.get("deployment_state_message")
        lines.append(printable(f"{entity.get('name')}: {word}" + (f" ({message})" if message else "")))
    return lines


def until_settled(
    server: Server,
    endpoint: Endpoint,
    timeout_s: float,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Endpoint:
    """The endpoint once its newest configuration is in force. `tell` gets each new line of progress.

    Raises ServerError if the configuration fails, or is not in force in time.
    """
    name = str(endpoint.get("name"))
    end = clock() + timeout_s
    printed: set[str] = set()
    while True:
        for line in progress_of(endpoint):
            if line not in printed:
                printed.add(line)
                tell(line)
        state = update_state(endpoint)
        if state == "NOT_UPDATING":
            return endpoint
        if state != "IN_PROGRESS":
            raise ServerError(_failure(name, endpoint))
        if clock() >= end:
            raise ServerError(
                f"{name} is not up after {timeout_s:g} s, and goes on coming up; "
                f"`serve-app endpoints get {name}` shows its state"
            )
        sleep(POLL_S)
        try:
            endpoint = read(server, name)
        except ServerError as error:  # a gateway or the control plane may just be restarting
            if not error.may_pass or clock() >= end:
                raise


def _failure(name: str, endpoint: Endpoint) -> str:
    reason = endpoint.get("state", {}).get("message") or "; ".join(progress_of(endpoint))
    return printable(
        f"{name} did not take its new configuration: {reason}. "
        f"`serve-app endpoints logs {name} --build` shows what happened"
    )
