"""The page of settings: every field of every settings model, from the models themselves."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel

from serve_app.config import GatewayConfig, ModelConfig
from serve_app.endpoints.endpoint import Endpoint

ROOTS: Final[tuple[tuple[type[BaseModel], str], ...]] = (
    (ModelConfig, "`args` of a model's application (`build_model_app`)."),
    (GatewayConfig, "`args` of the application `system` (`build_system_app`)."),
    (Endpoint, "One entry of `endpoints` in the gateway's `user_config`."),
)
_HEAD: Final = """# Settings

What a deploy file may say, made from the models that check it. A key that is not listed here is refused by
its name. `serve-app validate FILE` tells what is wrong with a file. [Endpoints](../endpoints.md) and
[models](../models.md) explain the settings in use, and [deploy/local.yaml](../../deploy/local.yaml) is a
whole file.

"""
_BOUNDS: Final = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching `{}`",
}
_WORDS: Final = {
    "null": "none",
    "boolean": "true or false",
    "integer": "integer",
    "number": "number",
    "string": "text",
}


def page() -> str:
    """The whole page, in Markdown."""
    parts, seen = [_HEAD], set[str]()
    for model, where in ROOTS:
        schema = model.model_json_schema()
        definitions = {model.__name__: schema, **schema.get("$defs", {})}
        for name, definition in definitions.items():
            if name not in seen and "properties" in definition:
                seen.add(name)
                parts.append(_section(name, definition, where if name == model.__name__ else ""))
    return "\n".join(parts)


def _section(name: str, schema: dict[str, Any], where: str) -> str:
    described = inspect.cleandoc(schema.get("description", ""))
    rows = [
        [f"`{field}`", _type(one), _default(field, one, schema), one.get("description", "")]
        for field, one in schema["properties"].items()
    ]
    table = [
        "| setting | takes | default | |",
        "|---|---|---|---|",
        *(f"| {' | '.join(map(_cell, row))} |" for row in rows),
    ]
    return "\n".join([f"## {name}", "", *filter(None, [where, described]), "", *table, ""])


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def _default(field: str, one: dict[str, Any], schema: dict[str, Any]) -> str:
    if field in schema.get("required", ()):
        return "required"
    default = one.get("default")
    if default is None:
        return "none"
    if default == "":
        return "empty"
    if isinstance(default, dict) and default:
        return "its own defaults"
    return f"`{json.dumps(default, ensure_ascii=False)}`"


def _type(one: dict[str, Any]) -> str:
    """In words: what a value may be, and its bounds."""
    if "$ref" in one:
        name = one["$ref"].rpartition("/")[2]
        return _CHOICES.get(name) or f"[{name}](#{name.lower()})"
    if "const" in one:
        return f"`{json.dumps(one['const'])}`"
    if "enum" in one:
        return ", ".join(f"`{each}`" for each in one["enum"])
    if "anyOf" in one:
        return " or ".join(dict.fromkeys(_type(each) for each in one["anyOf"]))
    if one.get("type") == "array":
        items = one.get("items") or {}
        return _joined(f"list of {_type(items)}", one)
    if one.get("type") == "object":
        values = one.get("additionalProperties")
        return f"map of names to {_type(values)}" if isinstance(values, dict) else "map"
    if one.get("format") == "path":
        return "path"
    return _joined(_WORDS.get(one.get("type", ""), "any value"), one)


def _joined(what: str, one: dict[str, Any]) -> str:
    """A number and its range, or a text and what it must be."""
    return (" " if one.get("type") in {"integer", "number"} else ", ").join([what, *_bounds(one)])


def _bounds(one: dict[str, Any]) -> Iterator[str]:
    return (words.format(_number(one[key])) for key, words in _BOUNDS.items() if key in one)


def _number(value: object) -> str:
    """Whole numbers without a decimal point, so that they read as one writes them."""
    return re.sub(r"\.0$", "", str(value)) if isinstance(value, float) and value < 1e16 else str(value)


def _choices() -> dict[str, str]:
    definitions = Endpoint.model_json_schema().get("$defs", {})
    return {
        name: ", ".join(f"`{each}`" for each in one["enum"])
        for name, one in definitions.items()
        if "enum" in one
    }


_CHOICES: Final = _choices()
