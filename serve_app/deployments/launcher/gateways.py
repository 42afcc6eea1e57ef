"""The gateways of a deploy file."""

from __future__ import annotations

from typing import Any


def gateway_entry(config: dict[str, Any]) -> dict[str, Any]:
    """The file's entry of the Gateway; empty where it has none."""
    entries = (entry for app in config["applications"] for entry in app.get("deployments") or ())
    return next((entry for entry in entries if entry.get("name") == "Gateway"), {})


def num_gateways(config: dict[str, Any]) -> int:
    """How many gateways the file begins with."""
    entry = gateway_entry(config)
    fixed, scaled = entry.get("num_replicas"), entry.get("autoscaling_config") or {}
    count = fixed if isinstance(fixed, int) else scaled.get("min_replicas")
    return max(1, count) if isinstance(count, int) else 1
