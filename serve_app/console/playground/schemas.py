"""Request bodies in an OpenAPI document: the members of one protocol's body, with references resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from serve_app.console.playground.protocols import Protocol

Json = Mapping[str, Any]

# Members that are objects of options.
NESTED: Final = frozenset({"parameters", "thinking", "output_config", "text", "reasoning"})


def members_of(document: Json, protocol: Protocol) -> dict[str, Json]:
    """The members of the protocol's body by dotted path, such as `parameters.top_p`.

    A member in `NESTED` is replaced by the members that it declares. Raises LookupError if the document does
    not describe the protocol.
    """
    found: dict[str, Json] = {}
    for name, member in _body(document, protocol)["properties"].items():
        nested = _with_members(document, member) if name in NESTED else None
        if nested is None:
            found[name] = member
        else:
            found |= {f"{name}.{inner}": each for inner, each in nested["properties"].items()}
    return found


def alternatives(document: Json, schema: Json) -> Iterator[Json]:
    """The alternatives for a value except null, with references resolved and unions flattened."""
    schema = resolved(document, schema)
    unions = schema.get("anyOf") or ([schema] if "discriminator" in schema else schema.get("oneOf"))
    if unions is None or "discriminator" in schema:
        if schema.get("type") != "null":
            yield schema
        return
    for each in unions:
        yield from alternatives(document, each)


def resolved(document: Json, schema: Json) -> Json:
    """`schema`, or what it refers to."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def _with_members(document: Json, member: Json) -> Json | None:
    return next((each for each in alternatives(document, member) if each.get("properties")), None)


def _body(document: Json, protocol: Protocol) -> Json:
    operation = document["paths"][protocol.path.replace("{model}", _parameter(document, protocol))]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    for each in schema.get("anyOf", [schema]):
        # A body with fewer required members than its component combines the component and more in `allOf`.
        parts = each.get("allOf", [each])
        if any(_is_for(part, protocol) for part in parts):
            return resolved(document, parts[0])
    raise LookupError(f"the OpenAPI document does not describe {protocol.id}")


def _is_for(schema: Json, protocol: Protocol) -> bool:
    if protocol.schema is None:
        return {"text_input", "max_tokens"} <= set(schema.get("properties", {}))
    return str(schema.get("$ref", "")).endswith(f"/{protocol.schema}")


def _parameter(document: Json, protocol: Protocol) -> str:
    """The placeholder for the endpoint's name in the document's path."""
    places = ("{model}", "{endpoint}")
    return next(
        (each for each in places if protocol.path.replace("{model}", each) in document["paths"]), places[0]
    )
