"""`strict` outside of OpenAI's protocol: the answer conforms, or the keyword is refused by name."""

import json
from typing import Any

import pytest

from serve_app.api.dialects.mindie.chat import ChatDialect as MindieChat
from serve_app.api.dialects.openai.chat import ChatDialect as OpenAIChat
from serve_app.api.dialects.ovms.chat import ChatDialect as OvmsChat
from serve_app.api.dialects.ovms.completions import CompletionDialect as OvmsCompletion
from serve_app.config import MindieConfig, OvmsConfig
from serve_app.errors import InvalidField
from serve_app.types import GrammarKind
from tests.support.gateway import chat_body, completion_body

# Open objects and optional members, as the documents of other products have them.
PAPER = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "authors": {"type": "array", "items": {"type": "string"}}},
}
UNIQUE = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
LOST = "properties.tags.uniqueItems"

OTHERS: dict[str, Any] = {
    "mindie": (MindieChat(MindieConfig()), chat_body()),
    "ovms": (OvmsChat(OvmsConfig()), chat_body()),
    "ovms completions": (OvmsCompletion(OvmsConfig()), completion_body()),
}
CHATS = {"mindie", "ovms"}


def form(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


def tool(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema, **fields}}


@pytest.mark.parametrize("name", OTHERS)
def test_a_form(name: str) -> None:
    dialect, body = OTHERS[name]

    def parse(schema: Any, **fields: Any) -> Any:
        return dialect.parse(json.dumps({**body, "response_format": form(schema, **fields)}).encode())

    call = parse(PAPER, strict=True)
    assert call.requests[0].grammar.kind is GrammarKind.SCHEMA
    assert call.ignored == ()
    assert parse(UNIQUE).ignored == (f"response_format.json_schema.schema.{LOST}",)
    with pytest.raises(InvalidField, match=LOST) as caught:
        parse(UNIQUE, strict=True)
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("name", sorted(CHATS))
def test_tools(name: str) -> None:
    dialect, body = OTHERS[name]

    def parse(offered: Any, choice: Any = "auto") -> Any:
        return dialect.parse(json.dumps({**body, "tools": [offered], "tool_choice": choice}).encode())

    assert parse(tool(PAPER, strict=True)).ignored == ()
    assert parse(tool(UNIQUE)).ignored == ()  # nothing is forced
    named = {"type": "function", "function": {"name": "f"}}
    for choice in ("required", named):
        assert parse(tool(UNIQUE), choice).ignored == (f"tools.0.function.parameters.{LOST}",)
    with pytest.raises(InvalidField, match=LOST) as caught:
        parse(tool(UNIQUE, strict=True))
    assert caught.value.param == "tools.0.function.parameters"


def test_openais_subset_holds_in_openais_protocol() -> None:
    def parse(**fields: Any) -> Any:
        return OpenAIChat().parse(json.dumps({**chat_body(), **fields}).encode())

    for fields in ({"response_format": form(PAPER, strict=True)}, {"tools": [tool(PAPER, strict=True)]}):
        with pytest.raises(InvalidField, match="additionalProperties to false"):
            parse(**fields)
    function = tool(UNIQUE)["function"]
    legacy = parse(functions=[function], function_call={"name": "f"})
    assert legacy.ignored == (f"functions.0.parameters.{LOST}",)
