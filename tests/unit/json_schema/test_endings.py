"""Recursion that cannot end is refused; what may be left out of an answer is left out."""

import random
from typing import Any

import pytest

from serve_app.json_schema import UnusableSchema, adapt
from tests.support.schema_answers import accepts, walk

NODE = {"$ref": "#/$defs/n"}


def of(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }


def rooted(node: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {**NODE, "$defs": {"n": node, **others}}


ENDLESS: dict[str, dict[str, Any]] = {
    "a required member": rooted(of(c=NODE)),
    "the root itself": of(c={"$ref": "#"}),
    "a reference to itself": rooted(NODE),
    "a ring of references": rooted({"$ref": "#/$defs/m"}, m=NODE),
    "a detour": rooted(of(c={"$ref": "#/$defs/m"}), m=of(d={"type": "array", "items": NODE, "minItems": 1})),
    "an item": rooted({"type": "array", "items": NODE, "minItems": 2}),
    "a first item": rooted({"type": "array", "prefixItems": [NODE], "minItems": 1}),
    "items of draft 4": rooted({"type": "array", "items": [{}], "additionalItems": NODE, "minItems": 2}),
    "every option": rooted({"anyOf": [of(c=NODE), {"type": "array", "items": NODE, "minItems": 1}]}),
    "every option of oneOf": rooted({"oneOf": [of(c=NODE), of(d=NODE)]}),
    "options of members": rooted(
        {**of([], a=NODE, b=NODE), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    ),
    "parts": rooted({"allOf": [{"type": "object"}, {"properties": {"c": NODE}, "required": ["c"]}]}),
    "a part by reference": rooted({**of(c=NODE), "$ref": "#/$defs/m"}, m={"type": "object"}),
    "a map with a member": rooted({"type": "object", "additionalProperties": NODE, "minProperties": 1}),
    "a member that is not declared": rooted(
        {"type": "object", "additionalProperties": NODE, "required": ["c"]}
    ),
    "a member that is inside": rooted(of(c=of(d=of(e=NODE)))),
    "a dynamic reference": {"$dynamicAnchor": "n", **of(c={"$dynamicRef": "#n"})},
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_cannot_end_is_refused(name: str) -> None:
    with pytest.raises(UnusableSchema, match=r"no answer of finite length matches \$"):
        adapt(ENDLESS[name])


def test_the_place_is_named() -> None:
    node = {"$ref": "#/components/schemas/Node"}
    schema = {**of(tree=node), "components": {"schemas": {"Node": of(child=node)}}}
    with pytest.raises(UnusableSchema, match=r"matches \$\.components\.schemas\.Node"):
        adapt(schema)


ENDING: dict[str, tuple[dict[str, Any], Any]] = {
    "an optional member": (rooted(of([], c=NODE)), {"c": {"c": {}}}),
    "null": (rooted(of(c={"anyOf": [NODE, {"type": "null"}]})), {"c": {"c": None}}),
    "types": (rooted({**of(c=NODE), "type": ["object", "null"]}), {"c": {"c": None}}),
    "no type": (rooted({"properties": {"c": NODE}, "required": ["c"]}), {"c": 1}),
    "no items": (rooted({"type": "array", "items": NODE}), [[], [[]]]),
    "an empty map": (rooted({"type": "object", "additionalProperties": NODE}), {"a": {"b": {}}}),
    "values": (rooted({"anyOf": [of(c=NODE), {"enum": ["x"]}]}), {"c": "x"}),
    "two that need one another": (
        rooted(of([], c={"$ref": "#/$defs/m"}), m=of(d=NODE)),
        {"c": {"d": {}}},
    ),
    "the root": (of([], c={"$ref": "#"}), {"c": {"c": {}}}),
}


@pytest.mark.parametrize("name", ENDING)
def test_what_can_end_is_recursive(name: str) -> None:
    schema, answer = ENDING[name]
    assert accepts(schema, answer)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {**of(["a"], a={"type": "null"}, b=NODE), "$defs": {"n": of(c=NODE)}},
            {"a": None},
            {"a": None, "b": {}},
        ),
        ({"anyOf": [NODE, {"type": "null"}], "$defs": {"n": of(c=NODE)}}, None, {}),
        ({"type": "array", "items": NODE, "$defs": {"n": of(c=NODE)}}, [], [{}]),
        ({"type": "object", "additionalProperties": NODE, "$defs": {"n": of(c=NODE)}}, {}, {"x": {}}),
    ],
)
def test_what_cannot_end_is_left_out(schema: dict[str, Any], good: Any, bad: Any) -> None:
    assert accepts(schema, good)
    assert not accepts(schema, bad)
    for seed in range(5):
        assert walk(schema, random.Random(seed)) == good


def test_the_time_is_bounded() -> None:
    chain = {f"d{i}": of(c={"$ref": f"#/$defs/d{i + 1}"}) for i in range(3_000)}
    adapt({"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": {"type": "null"}}})
    wide = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i * 7 + j) % 100}"} for j in range(60)]} for i in range(100)
    }
    with pytest.raises(UnusableSchema, match="no answer of finite length"):
        adapt({"$ref": "#/$defs/d0", "$defs": wide})
