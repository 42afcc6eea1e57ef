"""Names of members by patterns that may match one name."""

import random
from typing import Any

import jsonschema
import pytest

from serve_app.json_schema import adapt
from serve_app.json_schema.patterns import Overlaps, translate
from tests.support.schema_answers import accepts, walk

WHOLE: dict[str, Any] = {"type": "integer"}
SMALL: dict[str, Any] = {"type": "integer", "maximum": 9, "minimum": 0}


def by_name(**patterns: Any) -> dict[str, Any]:
    return {"type": "object", "patternProperties": patterns, "additionalProperties": False}


BRACKET = {"type": "object", "propertyNames": {"pattern": "^[[]$"}, "additionalProperties": WHOLE}
DECLARED = {"properties": {"ab": {"minimum": 5}}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            by_name(**{"^a": WHOLE, "b$": WHOLE}),
            [{}, {"ax": 1}, {"xb": 1}, {"ab": 1}],
            [{"x": 1}, {"ab": ""}],
        ),
        (by_name(**{"^a": WHOLE, "b$": SMALL}), [{"ab": 5}], [{"ab": 50}, {"xb": 50}]),
        (by_name(**{"^x-": True, "^.*$": WHOLE}), [{"x-a": 1}, {"b": 1}], [{"x-a": "1"}, {"b": "1"}]),
        (by_name(**{"^a": WHOLE, "^b": {"type": "string"}}), [{"a": 1, "b": "x"}], [{"a": "x"}, {"b": 1}]),
        (by_name(**{"^a": WHOLE, "b$": SMALL, "^c$": {"type": "null"}}), [{"c": None}], [{"c": 1}]),
        (by_name(**{"^[a&&b]$": WHOLE}), [{"&": 1}], [{"c": 1}]),
        ({**by_name(**{"^a": WHOLE, "b$": WHOLE}), **DECLARED}, [{"ab": 5}], [{"ab": 1}]),
        (BRACKET, [{"[": 1}], [{"a": 1}]),
    ],
)
def test_patterns_may_overlap(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    assert adapt(schema).lost == ()
    for value in good:
        jsonschema.validate(value, schema)
    assert [value for value in good if not accepts(schema, value)] == []
    assert [value for value in bad if accepts(schema, value)] == []


@pytest.mark.parametrize("seed", range(20))
def test_what_overlapping_patterns_allow_is_valid(seed: int) -> None:
    rng = random.Random(seed)
    patterns = rng.sample(["^a", "b$", "^[a-c]{1,3}$", "x", "^x-", ".*", "", r"^\w+$"], 3)
    schema = by_name(**{pattern: rng.choice([WHOLE, SMALL, True, {"type": "null"}]) for pattern in patterns})
    answer = walk(schema, rng)
    if answer is not None:
        jsonschema.Draft202012Validator(schema).validate(answer)


@pytest.mark.parametrize(
    ("schema", "lost"),
    [
        (by_name(**{"^(?!x-)": WHOLE}), "patternProperties"),
        (by_name(**{r"\bfoo": WHOLE}), "patternProperties"),
        (by_name(**{r"^\h": WHOLE, "^a": WHOLE}), "patternProperties"),
        ({"type": "object", "propertyNames": {"pattern": "^(?!x-)"}}, "propertyNames"),
    ],
)
def test_a_name_that_is_no_regular_expression_is_named(schema: dict[str, Any], lost: str) -> None:
    assert adapt(schema).lost == (lost,)
    assert accepts(schema, {"afoo": 1})


@pytest.mark.parametrize(
    ("a", "b", "may"),
    [
        ("^a", "b$", True),
        ("^a", "^b", False),
        ("^a$", "^aa$", False),
        ("^a{2,3}$", "^a{3,4}$", True),
        ("^a{2,3}$", "^a{4,5}$", False),
        ("a", "b", True),
        ("^[^a]$", "^a$", False),
        ("^[a-f]+$", "^[e-z]+$", True),
        ("^[a-f]+$", "^[g-z]+$", False),
        ("^x-", r"^\/", False),
        ("^[1-5](?:[0-9]{2}|XX)$", "^x-", False),
        ("a$|^b", "^c$", False),
        ("a$|^b", "^ca$", True),
        ("^$", "^a*$", True),
        ("^$", "^a+$", False),
        ("(?i)^a", "^A", True),
        (r"^\d", "^x", True),  # classes count as everything
        ("^a{5000}$", "^b$", True),  # too large to be certain
    ],
)
def test_whether_two_patterns_overlap(a: str, b: str, may: bool) -> None:
    assert Overlaps().may(translate(a), translate(b)) is may
    assert Overlaps().may(translate(b), translate(a)) is may


def test_the_time_is_bounded() -> None:
    wide = {f"^(a|b){{{i}}}c(a|b){{{60 - i}}}.*{i}$": WHOLE for i in range(60)}
    schema = {"properties": {f"p{i}": by_name(**wide) for i in range(20)}}
    assert adapt(schema).lost == ()
