"""Tools, the choice among them, and response_format: their limits, and what of them reaches the model."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.types import GrammarKind, ToolMode
from tests.conformance.databricks.asks import refused
from tests.support.gateway import Gateway, gateway

PATH = "/serving-endpoints/demo/invocations"
HELLO = [{"role": "user", "content": "Hello!"}]
ADD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def brief(value: Any) -> str:
    return repr(value)[:30]


async def post(g: Gateway, **members: Any) -> Any:
    return await g.post(PATH, {"messages": HELLO, **members})


# --- tools -------------------------------------------------------------------------------------


def tool(name: str = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "", **fields}}


def object_of(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}}


@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        (None, ToolMode.AUTO),
        ("auto", ToolMode.AUTO),
        ("required", ToolMode.REQUIRED),
        ("none", ToolMode.NONE),
        ({"type": "function", "function": {"name": "add"}}, ToolMode.NAMED),
    ],
)
async def test_tool_choice_with_tools(choice: Any, mode: ToolMode) -> None:
    async with gateway() as g:
        assert (await post(g, tools=[ADD], tool_choice=choice)).status_code == 200
        assert g.backend.last.tool_choice.mode is mode


@pytest.mark.parametrize(
    "choice", ["any", {"type": "function", "function": {"name": "sub"}}, {"type": "x"}, 5]
)
async def test_tool_choice_names_one_of_the_tools(choice: Any) -> None:
    async with gateway() as g:
        refused(await post(g, tools=[ADD], tool_choice=choice), "tool_choice")


async def test_tools_are_at_most_32_with_15_properties_each() -> None:
    async with gateway() as g:
        assert (await post(g, tools=[tool(f"f{i}") for i in range(32)])).status_code == 200
        refused(await post(g, tools=[tool(f"f{i}") for i in range(33)]), "tools", "32")
        assert (await post(g, tools=[tool(parameters=object_of(15))])).status_code == 200
        refused(
            await post(g, tools=[tool(parameters=object_of(16))]), "tools.0.function.parameters", "at most 15"
        )


async def test_tools_limits_are_settings_of_the_endpoint() -> None:
    settings = {"max_tools": 1, "max_tool_properties": 16, "strict_tools": True}
    async with gateway(endpoints=[{"name": "demo", "databricks": settings}]) as g:
        assert (await post(g, tools=[tool(parameters=object_of(16))])).status_code == 200
        refused(await post(g, tools=[tool("f"), tool("g")]), "tools", "up to 1")
        bare = {"type": "function", "function": {"name": "f"}}
        refused(await post(g, tools=[bare]), "tools.0.function.description")


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"type": "retrieval"}, "tools.0.type"),
        ({"function": {"name": "f"}}, "tools.0.type"),
        ({"type": "function", "function": {}}, "tools.0.function.name"),
        (tool("a b"), "tools.0.function.name"),
        (tool("x" * 65), "tools.0.function.name"),
        (tool(description=5), "tools.0.function.description"),
        (tool(parameters=[]), "tools.0.function.parameters"),
        (tool(strict=1), "tools.0.function.strict"),
        (tool(strict=True, parameters={"type": "object", "not": {}}), "tools.0.function.parameters"),
    ],
    ids=brief,
)
async def test_tools_that_are_refused(wrong: Any, name: str) -> None:
    async with gateway() as g:
        refused(await post(g, tools=[wrong]), name)


async def test_tools_need_neither_description_nor_parameters_and_may_be_strict() -> None:
    bare = {"type": "function", "function": {"name": "x" * 64}}
    for offered in (
        bare,
        *(tool(strict=True, **more) for more in ({}, {"parameters": SCHEMA}, {"parameters": PAPER})),
    ):
        async with gateway() as g:
            answer = await post(g, tools=[offered])
            assert answer.status_code == 200, answer.text


# --- response_format ---------------------------------------------------------------------------


# The kind of schema that the product's documents send with strict.
PAPER = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "authors": {"type": "array", "items": {"type": "string"}},
        "abstract": {"type": "string"},
        "keywords": {"type": "array", "items": {"type": "string"}},
    },
}


def form(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, **fields}}


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, GrammarKind.JSON),
        (form(), GrammarKind.SCHEMA),
        (form(strict=True, description="d"), GrammarKind.SCHEMA),
        (form(strict=True, schema=PAPER), GrammarKind.SCHEMA),
        (form(strict=False, schema={"type": "object", "not": {}}), GrammarKind.SCHEMA),
    ],
    ids=brief,
)
async def test_response_format_reaches_the_model(value: Any, kind: GrammarKind | None) -> None:
    async with gateway() as g:
        answer = await post(g, response_format=value)
        assert answer.status_code == 200, answer.text
        grammar = g.backend.last.grammar
        assert (grammar and grammar.kind) is kind


@pytest.mark.parametrize(
    "value",
    [
        {"type": "json_schema"},
        {"type": "text", "json_schema": {"name": "x", "schema": {}}},
        form(name=None),
        form(schema=None),
        form(schema="x"),
        form(strict="yes"),
        form(strict=True, schema={"type": "object", "not": {}}),
    ],
    ids=brief,
)
async def test_response_format_that_is_refused(value: Any) -> None:
    async with gateway() as g:
        refused(await post(g, response_format=value), "response_format")


async def test_keywords_that_are_not_enforced_are_named_and_refused_if_strict() -> None:
    tags = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    async with gateway() as g:
        answer = await post(g, response_format=form(schema=tags))
        assert answer.status_code == 200, answer.text
        place = "response_format.json_schema.schema.properties.tags.uniqueItems"
        assert answer.headers["x-ignored-fields"] == place
        refused(
            await post(g, response_format=form(schema=tags, strict=True)),
            "response_format",
            "properties.tags.uniqueItems",
        )
        answer = await post(g, tools=[tool(parameters=tags)], tool_choice="required")
        assert answer.headers["x-ignored-fields"] == "tools.0.function.parameters.properties.tags.uniqueItems"
