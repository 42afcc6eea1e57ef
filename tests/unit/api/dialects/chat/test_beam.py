"""Beam search in OpenAI's bodies: what it takes to turn it on, its ranges, and its words in errors."""

import json

import pytest

from serve_app import limits
from serve_app.api.dialects.mindie.chat import ChatDialect as MindieChat
from serve_app.config import MindieConfig
from serve_app.errors import InvalidField
from serve_app.types import Beam, EarlyStopping
from tests.conformance.fields import Bounds
from tests.support.gateway import chat_body, completion_body, gateway
from tests.unit.api.dialects.openai.asks import parse_chat, parse_text


def parse_mindie(**fields):
    return MindieChat(MindieConfig()).parse(json.dumps(chat_body(**fields)).encode())


OPENAI = pytest.mark.parametrize("parse", [parse_chat, parse_text])
ALL = pytest.mark.parametrize("parse", [parse_chat, parse_text, parse_mindie])


def refused(parse, **fields):
    with pytest.raises(InvalidField) as caught:
        parse(**fields)
    return caught.value


@ALL
def test_without_the_switch_there_is_no_search(parse):
    for fields in ({}, {"use_beam_search": False, "best_of": 4}, {"use_beam_search": None, "best_of": 4}):
        (request,) = parse(**fields).requests
        assert (request.beam, request.best_of) == (None, fields.get("best_of"))


@ALL
def test_best_of_is_the_width_and_n_the_hypotheses_returned(parse):
    (request,) = parse(use_beam_search=True, best_of=5, n=2).requests
    assert (request.beam, request.n, request.best_of) == (Beam(width=5), 2, None)


@ALL
def test_without_best_of_n_is_the_width(parse):
    (request,) = parse(use_beam_search=True, n=3).requests
    assert (request.beam, request.n) == (Beam(width=3), 3)


@OPENAI
def test_the_shape_of_a_search(parse):
    call = parse(
        use_beam_search=True,
        best_of=6,
        length_penalty=-0.5,
        early_stopping=True,
        num_beam_groups=3,
        diversity_penalty=0.7,
    )
    (request,) = call.requests
    assert request.beam == Beam(
        width=6,
        length_penalty=-0.5,
        early_stopping=EarlyStopping.YES,
        groups=3,
        diversity_penalty=0.7,
    )
    assert call.ignored == ()


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (True, EarlyStopping.YES),
        (False, EarlyStopping.NO),
        ("never", EarlyStopping.NEVER),
        (None, EarlyStopping.NO),
    ],
)
def test_early_stopping(value, rule):
    (request,) = parse_chat(use_beam_search=True, n=2, early_stopping=value).requests
    assert request.beam.early_stopping is rule


BOUNDS: Bounds = {
    "use_beam_search": ([True, False], [1, "true"]),
    "length_penalty": (
        [-limits.MAX_LENGTH_PENALTY, 0, limits.MAX_LENGTH_PENALTY],
        [-10.01, 10.01, "1", True],
    ),
    "early_stopping": ([True, False, "never"], [1, 0, "always", [True]]),
    "num_beam_groups": ([1, 2, 4], [0, 3, 5, limits.MAX_BEAM_WIDTH + 1, 1.5]),
    "diversity_penalty": ([0, limits.MAX_DIVERSITY_PENALTY], [-0.01, 100.01, "1"]),
}


@OPENAI
@pytest.mark.parametrize(("field", "value"), [(f, v) for f, (inside, _) in BOUNDS.items() for v in inside])
def test_what_is_inside_its_range_is_accepted(parse, field, value):
    parse(**{"use_beam_search": True, "best_of": 4, field: value})


@OPENAI
@pytest.mark.parametrize(("field", "value"), [(f, v) for f, (_, beyond) in BOUNDS.items() for v in beyond])
def test_what_is_outside_is_refused_by_name(parse, field, value):
    error = refused(parse, **{"use_beam_search": True, "best_of": 4, field: value})
    assert error.param == field
    assert error.message.startswith(f"{field}: must ")


@ALL
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "n"),
        ({"n": 1}, "n"),
        ({"n": limits.MAX_BEAM_WIDTH + 1}, "n"),
        ({"best_of": 1}, "best_of"),
        ({"best_of": limits.MAX_BEAM_WIDTH + 1}, "best_of"),
        ({"n": 4, "best_of": 3}, "best_of"),
    ],
)
def test_the_bounds_of_the_width_are_told_by_the_field_that_gave_it(parse, fields, param):
    error = refused(parse, use_beam_search=True, **fields)
    assert error.param == param
    if fields != {"n": 4, "best_of": 3}:
        assert f"from 2 to {limits.MAX_BEAM_WIDTH}" in error.message


@ALL
@pytest.mark.parametrize("width", [2, limits.MAX_BEAM_WIDTH])
def test_the_widest_and_the_narrowest_search(parse, width):
    assert parse(use_beam_search=True, best_of=width).requests[0].beam.width == width


@OPENAI
def test_a_search_may_be_streamed_though_not_all_of_it_is_returned(parse):
    assert parse(use_beam_search=True, best_of=4, n=1, stream=True).requests[0].stream
    assert refused(parse, best_of=4, n=1, stream=True).param == "best_of"


def test_in_mindies_chat_a_streamed_search_returns_all_of_its_beams():
    assert parse_mindie(use_beam_search=True, best_of=4, n=4, stream=True).requests[0].stream
    assert refused(parse_mindie, use_beam_search=True, best_of=4, n=1, stream=True).param == "best_of"


@OPENAI
def test_the_shape_of_no_search_is_listed_as_ignored(parse):
    call = parse(length_penalty=2.0, early_stopping=True, num_beam_groups=1, diversity_penalty=0)
    assert call.ignored == ("length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty")


@pytest.mark.parametrize(("fields", "name"), [({"n": 4}, "n"), ({"best_of": 4}, "best_of")])
async def test_a_models_refusal_names_the_clients_field(fields, name):
    for path, body in (("/v1/chat/completions", chat_body), ("/v1/completions", completion_body)):
        async with gateway() as g:
            g.backend.refuse = InvalidField("beam_width", "must be from 2 to 3.", joint=" ")
            answer = await g.post(path, body(use_beam_search=True, **fields))
            assert answer.status_code == 400
            told = answer.json()["error"]
            assert (told["param"], told["message"]) == (name, f"{name} must be from 2 to 3.")
