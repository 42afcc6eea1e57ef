"""What the parser refuses of a schema is told with its place."""

import json
from typing import Any

import pytest

from serve_app.replica.grammar.child import Trial
from serve_app.replica.grammar.messages import SandboxSetup
from serve_app.types import Grammar, GrammarKind
from tests.support.tiny_llama import tiny_tokenizer

NOTHING = {"type": "string", "minLength": 3, "maxLength": 2}


@pytest.fixture(scope="module")
def trial() -> Trial:
    backend = tiny_tokenizer().backend_tokenizer
    size = backend.get_vocab_size()
    return Trial(
        SandboxSetup(tokenizer_json=backend.to_str(), vocab_size=384, own_vocab_size=size, eos_token_ids=(2,))
    )


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def refusal(trial: Trial, schema: dict[str, Any]) -> str:
    reply = trial.of(Grammar(kind=GrammarKind.SCHEMA, text=json.dumps(schema)))
    assert reply.refused is not None
    return reply.refused


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (NOTHING, "$: "),
        (of(a={}, b=of(c=NOTHING)), "$.properties.b.properties.c: "),
        (of(a={"type": "array", "items": NOTHING, "minItems": 1}), "$.properties.a.items: "),
        (of(a={"allOf": [{"title": "x"}, NOTHING]}), "$.properties.a.allOf.1: "),
        (
            {**of(a={"$ref": "#/components/schemas/A"}), "components": {"schemas": {"A": of(b=NOTHING)}}},
            "$.components.schemas.A.properties.b: ",
        ),
        # What may be left out is not at fault.
        (
            {"type": "object", "properties": {"a": NOTHING, "b": NOTHING}, "required": ["b"]},
            "$.properties.b: ",
        ),
        (of(a={"type": "string", "format": "date", "pattern": "^2023-02-29$"}), "$.properties.a: "),
        (of(a={"allOf": [{"type": "string"}, {"type": "integer"}]}), "$.properties.a: "),
    ],
)
def test_the_place_of_a_fault(trial: Trial, schema: dict[str, Any], place: str) -> None:
    assert refusal(trial, schema).startswith(place)


def test_what_is_too_much_has_no_place(trial: Trial) -> None:
    wide = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(30_000)}}
    assert not refusal(trial, {**wide, "required": ["p1"]}).startswith("$.")
