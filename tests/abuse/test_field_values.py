"""Every field of every body with values of every kind: a sound request or a named refusal, nothing else."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_app.api.dialects.openai.chat import ChatBody, ChatDialect
from serve_app.api.dialects.openai.completions import CompletionBody, CompletionDialect
from serve_app.errors import InvalidBody, InvalidField, PromptTooLong
from serve_app.types import GenerateRequest
from tests.support.gateway import chat_body, completion_body

DIALECTS = [(ChatDialect(), ChatBody, chat_body), (CompletionDialect(), CompletionBody, completion_body)]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, 1.5, 3.0, 1e308, -1e308, 2**63, 10**40, "", "x", "1", "\x00",
    "\u202e", "é" * 3_000, [], [None], [True], [0], ["x"], [[]], [[1]], [["x"]], [{}], [1, "x"], {},
    {"x": 1}, {"1": 1}, {"": None}, {"type": "text"}, {"include_usage": True}, {"include_usage": "x"},
    [{"role": "user", "content": "x"}],
]  # fmt: skip


def check(dialect, raw):
    """The call, or None for a refusal. Any other exception fails the test."""
    refusal = None
    try:
        call = dialect.parse(raw)
    except (InvalidBody, InvalidField, PromptTooLong) as error:
        refusal = error
    if refusal is not None:
        assert 0 < len(refusal.message) < 500
        assert isinstance(refusal, InvalidBody) or refusal.param
        return None
    assert all(isinstance(request, GenerateRequest) for request in call.requests)
    return call


@pytest.mark.parametrize(("dialect", "body", "make"), DIALECTS, ids=["chat", "completions"])
def test_each_field_with_each_kind_of_value(dialect, body, make):
    for name in body.model_fields:
        for value in ODD:
            call = check(dialect, json.dumps(make(**{name: value})).encode())
            if value is None and name not in ("model", "messages", "prompt"):
                assert call is not None, name


@pytest.mark.parametrize(("dialect", "body", "make"), DIALECTS, ids=["chat", "completions"])
def test_unknown_fields_cannot_take_the_place_of_our_own_attributes(dialect, body, make):
    plain = check(dialect, json.dumps(make()).encode())
    names = [name for name in dir(body) if name not in body.model_fields]
    call = check(dialect, json.dumps(make(**dict.fromkeys(names, "x"))).encode())
    assert call.requests == plain.requests
    assert set(call.ignored) == set(names)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize(("dialect", "body", "make"), DIALECTS, ids=["chat", "completions"])
def test_any_json_in_any_fields(dialect, body, make):
    names = st.sampled_from([*body.model_fields, "tools", "response_format", "tool_choice", "x"])

    @settings(deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.dictionaries(names, json_values, max_size=4))
    def run(fields):
        check(dialect, json.dumps(make(**fields)).encode("utf-8", "surrogatepass"))

    run()


@pytest.mark.parametrize(("dialect", "body", "make"), DIALECTS, ids=["chat", "completions"])
def test_any_bytes(dialect, body, make):
    sound = json.dumps(make(stream=True, stop=["é"], logit_bias={"1": 2})).encode()

    @settings(deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, len(sound)), st.integers(0, 4), st.binary(max_size=6))
    def run(at, removed, added):
        check(dialect, sound[:at] + added + sound[at + removed :])

    run()


@pytest.mark.parametrize(
    "place", ["role", "content", "name", "tool_calls", "tool_call_id", "function_call", "reasoning"]
)
@pytest.mark.parametrize("role", ["user", "assistant", "tool", "function"])
def test_any_json_in_a_message(place, role):
    base = {"role": role, "content": "x", "tool_call_id": "c"}

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(json_values)
    def run(value):
        call = check(ChatDialect(), json.dumps(chat_body(messages=[{**base, place: value}])).encode())
        if call is not None:
            (message,) = call.requests[0].prompt.messages
            assert isinstance(message["content"], str)

    run()
