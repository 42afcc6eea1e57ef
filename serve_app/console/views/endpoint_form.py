"""The forms that create an endpoint, and that change its tags and AI gateway. Does not depend on routes or
templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from serve_app.console.forms import Form, listed, words
from serve_app.console.views import Json
from serve_app.console.views.config_form import config_body
from serve_app.console.views.gateway_form import FORM, settings_body
from serve_app.console.views.problem import Problem
from serve_app.endpoints.ai_gateway import PARTS


def creation_body(form: Form) -> dict[str, Any]:
    """The endpoint described by a form."""
    body: dict[str, Any] = {"name": form.text("name"), "config": config_body(form)}
    body |= {name: text for name in ("description", "task") if (text := form.text(name))}
    if tags := tags_in(form.text("tags")):
        body["tags"] = [{"key": key, "value": value} for key, value in tags.items()]
    return body


def tags_in(text: str, there: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Parse `team=sea, spare` as tags by key. Existing tags (`there`) may contain any characters."""
    known = {_tag_text(key, value): (key, value) for key, value in there.items()}
    found = {}
    for word in words(text):
        key, _, value = word.partition("=")
        key, value = known.get(word) or (key.strip(), value.strip())
        found[key] = value
    return found


def tags_text(tags: tuple[tuple[str, str], ...]) -> str:
    """Tags as a form shows them."""
    return listed(_tag_text(key, value) for key, value in tags)


def _tag_text(key: str, value: str) -> str:
    return f"{key}={value}" if value else key


def tags_body(form: Form, former: Json) -> dict[str, Any]:
    """The change from the endpoint's `former` tags to the form's tags."""
    there = {tag["key"]: tag.get("value", "") for tag in former.get("tags", ())}
    wanted = tags_in(form.text("tags"), there)
    added = [{"key": key, "value": value} for key, value in wanted.items() if there.get(key) != value]
    deleted = [key for key in there if key not in wanted]
    return {"add_tags": added, "delete_tags": deleted}


def gateway_text(endpoint: Json) -> str:
    """The settings of an endpoint's AI gateway as readable JSON."""
    gateway = endpoint.get("ai_gateway") or {}
    shown = {name: gateway[name] for name in PARTS if name in gateway}
    return json.dumps(shown, indent=2, ensure_ascii=False)


def gateway_body(form: Form, endpoint: Json) -> Any:
    """The AI gateway's settings from a form, by fields or as JSON. Raises Problem for invalid JSON."""
    if FORM in form:
        return settings_body(form, endpoint.get("ai_gateway") or {})
    text = form.text("ai_gateway") or "{}"
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        why = f" ({error.msg}, line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise Problem(f"this is not JSON{why}", "ai_gateway") from None
