"""The page of the HTTP interface: every route, rendered from the gateway's OpenAPI document.

The document needs no model, so the gateway is made over the backend of the tests and asked for it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx

from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app

METHODS: Final = ("get", "post", "put", "patch", "delete")
_BOUNDS: Final = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "exclusiveMaximum": "below {}",
    "minLength": "(at least {} characters)",
    "maxLength": "(at most {} characters)",
    "minItems": "(at least {})",
    "maxItems": "(at most {})",
}
_HEAD: Final = """# HTTP interface

Every route of the gateway, made from its OpenAPI document. [Protocols](../protocols.md) says what each field
does and which test shows it; [KServe v2](../kserve.md) has the same tensors over gRPC. A running server has
the document at `/openapi.json`, and a page to try it at `/docs`; with keys configured, both want one.
"""


def page() -> str:
    """The whole page, in Markdown."""
    document = asyncio.run(_document())
    sections: dict[str, list[str]] = {tag["name"]: [] for tag in document.get("tags", ())}
    described = {tag["name"]: tag.get("description", "") for tag in document.get("tags", ())}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                tag = (item[method].get("tags") or ["Other"])[0]
                sections.setdefault(tag, []).append(_operation(method, path, item[method], document))
    parts = (
        f"## {tag}\n\n{described.get(tag, '')}\n\n" + "\n".join(operations)
        for tag, operations in sections.items()
        if operations
    )
    return "\n".join([_HEAD, *parts])


async def _document() -> dict[str, Any]:
    """As a server gives it to a client on the same machine."""
    transport = httpx.ASGITransport(fake_app(FakeBackend()))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.get("/openapi.json")
        document: dict[str, Any] = answer.raise_for_status().json()
        return document


def _operation(method: str, path: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    parts = [f"### `{method.upper()} {path}`", operation.get("summary", ""), operation.get("description", "")]
    parameters = [_resolved(each, document) for each in operation.get("parameters", ())]
    if parameters:
        rows = [
            _row(f"`{each['name']}`", each["in"], _type(each.get("schema") or {}, document), _cell(each))
            for each in parameters
        ]
        parts.append("\n".join(["| parameter | in | takes | |", "|---|---|---|---|", *rows]))
    body = _resolved(operation.get("requestBody") or {}, document)
    for media, content in (body.get("content") or {}).items():
        parts.append(f"Body, `{media}`:")
        parts.append(_fields(content.get("schema") or {}, document))
    rows = [
        f"| {status} | {_cell(_resolved(answer, document))} |"
        for status, answer in (operation.get("responses") or {}).items()
    ]
    parts.append("\n".join(["| answer | |", "|---|---|", *rows]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _fields(schema: dict[str, Any], document: dict[str, Any]) -> str:
    """The members of an object; of one of several objects, those of each."""
    schema = _resolved(schema, document)
    options = schema.get("anyOf") or schema.get("oneOf")
    if options and "properties" not in schema:
        tables = [(each.get("$ref", "").rpartition("/")[2], _fields(each, document)) for each in options]
        return "\n\nor\n\n".join(f"`{title}`:\n\n{table}" if title else table for title, table in tables)
    properties = schema.get("properties")
    if not properties:
        return _type(schema, document)
    required = set(schema.get("required", ()))
    rows = [
        _row(
            f"`{name}`",
            _type(one, document),
            _default(name, one, required),
            _cell(_resolved(one, document)),
        )
        for name, one in properties.items()
    ]
    return "\n".join(["| field | takes | default | |", "|---|---|---|---|", *rows])


def _default(name: str, one: dict[str, Any], required: set[str]) -> str:
    if name in required:
        return "required"
    return f"`{one['default']}`" if one.get("default") is not None else ""


def _type(schema: dict[str, Any], document: dict[str, Any]) -> str:
    schema = _resolved(schema, document)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(each, document) for each in schema[several]))
    kind = schema.get("type") or "any value"
    words = [kind if isinstance(kind, str) else " or ".join(kind)]
    if kind == "array" and schema.get("items"):
        words.append(f"of {_type(schema['items'], document)}")
    words += [form.format(schema[key]) for key, form in _BOUNDS.items() if key in schema]
    return " ".join(words).replace("|", "\\|")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(one: dict[str, Any]) -> str:
    return str(one.get("description", "")).replace("\n", " ").replace("|", "\\|")


def _resolved(one: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """What a reference leads to; anything else as it is."""
    for _ in range(8):
        if "$ref" not in one:
            return one
        target: Any = document
        for part in one["$ref"].removeprefix("#/").split("/"):
            target = target[part.replace("~1", "/").replace("~0", "~")]
        one = target
    return one
