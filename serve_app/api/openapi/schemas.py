"""JSON Schemas of wire models and typed dictionaries, for an OpenAPI document.

An optional field may also be null; its default is stated only in its description.
Depends on types, but not on routes or protocols.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final, get_args

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from serve_app.api.edge.body import WireModel

_REFERS: Final = "#/components/schemas/"
REF: Final = f"{_REFERS}{{model}}"

_LONG: Final = re.compile(r"serve_app__api__(?:dialects__)?(?P<protocol>[a-z0-9]+)__(?:\w+__)?(?P<name>\w+)")
_PREFIX: Final = {"openai": "OpenAI", "mindie": "MindIE", "ovms": "OpenVINO"}  # else the capitalised folder


_NULL: Final = {"type": "null"}


class _Schemas(GenerateJsonSchema):
    """Pydantic's schemas, without Python-only details, and with the wire models' field descriptions."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default", ...) is None:  # stands for an absent field, and is no value of its own
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        """Answers have the listed members and no others."""
        found = super().typed_dict_schema(schema)
        found.pop("title", None)
        found.setdefault("additionalProperties", False)
        return found

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found, model = super().model_schema(schema), schema["cls"]
        if not issubclass(model, WireModel):
            return found
        for word in ("title", "description"):  # a class tells programmers, not clients
            found.pop(word, None)
        properties: dict[str, Any] = found.setdefault("properties", {})
        for name, shape in model.fields_beside.items():
            properties[name] = self.generate_inner(TypeAdapter(shape | None).core_schema)
            get_args(shape)[-1](properties[name])
        required = model.required()
        for name in required:
            listed = properties[name].pop("anyOf")
            properties[name] |= any_of([each for each in listed if each != _NULL])
        if required:
            found["required"] = required
        return found


def schemas(types: Mapping[Hashable, Any]) -> tuple[dict[Hashable, dict[str, Any]], dict[str, Any]]:
    """The schema of each of `types` under its key, and the components that they refer to, by name."""
    adapters = [(key, "validation", TypeAdapter(each)) for key, each in types.items()]
    found, definitions = TypeAdapter.json_schemas(
        adapters,  # type: ignore[arg-type]
        ref_template=REF,
        schema_generator=_Schemas,
    )
    components = definitions.get("$defs", {})
    names = {name: _short(name) for name in components}
    by_key = {key: _renamed(schema, names) for (key, _), schema in found.items()}
    return by_key, {names[name]: _renamed(schema, names) for name, schema in components.items()}


def _short(name: str) -> str:
    """A component's short name. If several modules define the name, it is prefixed with the protocol."""
    found = _LONG.fullmatch(name)
    if found is None:
        return name
    protocol = found["protocol"]
    return _PREFIX.get(protocol, protocol.capitalize()) + found["name"]


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with its references to components renamed, including those of discriminators."""
    if isinstance(value, str) and value.startswith(_REFERS):
        return REF.format(model=names[value.removeprefix(_REFERS)])
    if isinstance(value, dict):
        return {key: _renamed(each, names) for key, each in value.items()}
    return [_renamed(each, names) for each in value] if isinstance(value, list) else value


def any_of(listed: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The schema that accepts whatever any of `listed` accepts."""
    distinct: list[dict[str, Any]] = []
    for schema in listed:
        for each in schema["anyOf"] if schema.keys() == {"anyOf"} else [schema]:
            if each not in distinct:
                distinct.append(each)
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}
