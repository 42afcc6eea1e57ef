"""What the engine does beyond OpenAI's fields, asked for under the names clients know: ranges and meaning."""

import json

import pytest

from serve_app import limits
from serve_app.api.dialects.openai.chat import ChatDialect
from serve_app.errors import InvalidBody, InvalidField
from serve_app.types import ProcessorCall
from tests.conformance.fields import Bounds
from tests.support.gateway import chat_body
from tests.unit.api.dialects.openai.asks import parse_chat, parse_text

BOTH = pytest.mark.parametrize("parse", [parse_chat, parse_text])


@BOTH
@pytest.mark.parametrize(
    ("field", "given", "own", "value"),
    [
        ("no_repeat_ngram_size", 3, "no_repeat_ngram", 3),
        ("no_repeat_ngram_size", None, "no_repeat_ngram", 0),
        ("typical_p", 0.5, "typical_p", 0.5),
        ("typical_p", None, "typical_p", 1.0),
        ("watermark", True, "watermark", True),
        ("watermark", None, "watermark", False),
        ("allowed_token_ids", [3, 5.0], "allowed_token_ids", (3, 5)),
        ("allowed_token_ids", None, "allowed_token_ids", ()),
        ("logits_processors", None, "processors", ()),
        ("logits_processors", ["mild"], "processors", (ProcessorCall(name="mild"),)),
        (
            "logits_processors",
            [{"qualname": "mild", "args": [], "kwargs": {"x": 1}}, {"qualname": "wild"}],
            "processors",
            (ProcessorCall(name="mild", arguments='{"x": 1}'), ProcessorCall(name="wild")),
        ),
    ],
)
def test_a_field_reaches_the_sampling(parse, field, given, own, value):
    (request,) = parse(**{field: given}).requests
    assert getattr(request.sampling, own) == value


@BOTH
@pytest.mark.parametrize(("given", "engine"), [(None, 0), (0, 0), (-4, 4), (4, -4)])
def test_a_lower_priority_runs_earlier(parse, given, engine):
    assert parse(priority=given).requests[0].priority == engine


BIG = "x" * limits.MAX_PROCESSOR_ARGUMENT_CHARS
BOUNDS: Bounds = {
    "allowed_token_ids": (
        [[], [0, 2**31 - 1], [1] * limits.MAX_ALLOWED_TOKEN_IDS],
        [[-1], [2**31], ["1"], 5, [1] * (limits.MAX_ALLOWED_TOKEN_IDS + 1)],
    ),
    "logits_processors": (
        [[], ["a"] * limits.MAX_PROCESSORS, ["n" * 256], [{"qualname": "a", "args": None, "kwargs": None}]],
        [
            "a", {}, [1], [""], ["n" * 257], ["a"] * (limits.MAX_PROCESSORS + 1), [{}], [{"qualname": 1}],
            [{"qualname": "a", "args": [1]}], [{"qualname": "a", "kwargs": []}],
            [{"qualname": "a", "kwargs": {"x": BIG}}], [{"qualname": "a", "code": "b"}],
        ],
    ),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize(("field", "value"), [(f, v) for f, (inside, _) in BOUNDS.items() for v in inside])
def test_what_is_inside_its_range_is_accepted(parse, field, value):
    assert field not in parse(**{field: value}).ignored


@BOTH
@pytest.mark.parametrize(("field", "value"), [(f, v) for f, (_, beyond) in BOUNDS.items() for v in beyond])
def test_what_is_outside_is_refused_by_name(parse, field, value):
    with pytest.raises(InvalidField) as caught:
        parse(**{field: value})
    assert caught.value.param == field
    assert caught.value.message.startswith(f"{field}: must be ")


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
def test_a_processors_argument_is_finite(number):
    body = json.dumps(chat_body(logits_processors=[{"qualname": "a", "kwargs": {"x": 1.5}}]))
    with pytest.raises((InvalidField, InvalidBody)):
        ChatDialect().parse(body.replace("1.5", number).encode())


@BOTH
def test_a_models_names_of_fields_are_told_as_ours(parse):
    assert parse(no_repeat_ngram_size=2).names["no_repeat_ngram"] == "no_repeat_ngram_size"
