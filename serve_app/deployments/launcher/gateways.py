"""The gateways of a deploy file."""

from __future__ import annotations

from typing import Any

from serve_app.endpoints.rules import SYSTEM_APP


def gateway_entry(config: dict[str, Any]) -> dict[str, Any]:
    """The file's entry for the Gateway deployment; empty if there is none."""
    entries = (entry for app in config["applications"] for entry in app.get("deployments") or ())
    return next((entry for entry in entries if entry.get("name") == "Gateway"), {})


def system_args(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of the file's gateway; empty if there are none."""
    apps = (app for app in config["applications"] if app.get("name") == SYSTEM_APP)
    return next((app.get("args") or {} for app in apps), {})


def num_gateways(config: dict[str, Any]) -> int:
    """The number of gateways that the file starts with."""
    entry = gateway_entry(config)
    fixed, scaled = entry.get("num_replicas"), entry.get("autoscaling_config") or {}
    count = fixed if isinstance(fixed, int) else scaled.get("min_replicas")
    return max(1, count) if isinstance(count, int) else 1
