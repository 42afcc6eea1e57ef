"""Tools of a Databricks chat: OpenAI's, with an endpoint's limits on their number and size."""

from __future__ import annotations

from typing import Any

from serve_app.api.dialects.chat.tools import ToolOffer, parse_tools
from serve_app.endpoints.endpoint import Databricks
from serve_app.errors import InvalidField


def parse_offer(tools: Any, choice: Any, settings: Databricks, *, parallel: bool) -> ToolOffer:
    """What `tools` and `tool_choice` say. Raises InvalidField or UnsupportedField."""
    if not tools and choice not in (None, "none"):
        raise InvalidField("tool_choice", "only together with tools, unless it is none")
    offer = parse_tools(tools, choice, parallel=parallel, max_tools=settings.max_tools)
    for i, tool in enumerate(offer.tools):
        _check(tool["function"], f"tools.{i}.function", settings)
    return offer


def _check(function: dict[str, Any], where: str, settings: Databricks) -> None:
    if settings.strict_tools and "description" not in function:
        raise InvalidField(f"{where}.description", "is required")
    parameters = f"{where}.parameters"
    properties = function["parameters"].get("properties", {})
    if isinstance(properties, dict) and len(properties) > settings.max_tool_properties:
        raise InvalidField(parameters, f"must have at most {settings.max_tool_properties} properties")
