"""The chat dialect: every field of a body becomes a field of the request, and answers have OpenAI's shape."""

import json

import pytest

from serve_app.api.dialects.chat.wire import logprob_value
from serve_app.api.dialects.openai.wire import usage_fields
from serve_app.errors import InvalidBody, UnsupportedField
from serve_app.limits import MAX_CONTENT_PARTS, MAX_MESSAGES
from serve_app.types import FinishReason, SamplingParams, Templating, TokenDelta, Usage
from tests.support.fakes_backend import logprob_of, model_info
from tests.unit.api.dialects.openai.asks import parse_chat as parse
from tests.unit.api.dialects.openai.asks import refused, request


def test_defaults():
    found, call = request(), parse()
    assert found.sampling == SamplingParams()
    assert (found.n, found.best_of, found.stop, found.logprobs, found.stream) == (1, None, (), None, False)
    assert (call.stream, call.timeout_s, call.ignored) == (False, None, ())


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("temperature", 0, 0.0),
        ("temperature", 2, 2.0),
        ("top_p", 0.1, 0.1),
        ("top_k", 5, 5),
        ("top_k", -1, 0),
        ("top_k", 0, 0),
        ("min_p", 0.1, 0.1),
        ("typical_p", 0.9, 0.9),
        ("repetition_penalty", 1.2, 1.2),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 2, 2.0),
        ("seed", 7, 7),
        ("seed", -1, 2**64 - 1),
        ("seed", -(2**63), 2**63),
        ("seed", 2**63 - 1, 2**63 - 1),
        ("min_tokens", 3, 3),
        ("max_tokens", 9, 9),
        ("max_completion_tokens", 9, 9),
        ("ignore_eos", True, True),
        ("stop_token_ids", [1, 2.0], (1, 2)),
        ("logit_bias", {"5": 100, "6": -100}, ((5, 100.0), (6, -100.0))),
    ],
)
def test_sampling_fields(field, value, expected):
    name = "max_tokens" if field == "max_completion_tokens" else field
    assert getattr(request(**{field: value}).sampling, name) == expected


@pytest.mark.parametrize(
    ("field", "value", "name", "expected"),
    [
        ("n", 3, "n", 3),
        ("best_of", 4, "best_of", 4),
        ("stop", "x", "stop", ("x",)),
        ("stop", ["x", "y"], "stop", ("x", "y")),
        ("include_stop_str_in_output", True, "include_stop", True),
        ("skip_special_tokens", False, "skip_special_tokens", False),
        ("bad_words", ["no"], "bad_words", ("no",)),
        ("prompt_logprobs", 2, "prompt_logprobs", 2),
        ("stream", True, "stream", True),
        ("logprobs", True, "logprobs", 0),
        ("logprobs", False, "logprobs", None),
    ],
)
def test_other_fields(field, value, name, expected):
    assert getattr(request(**{field: value}), name) == expected


def test_top_logprobs_count_the_alternatives():
    assert request(logprobs=True, top_logprobs=20).logprobs == 20
    assert refused(top_logprobs=2).param == "top_logprobs"
    assert request(top_logprobs=0).logprobs is None


def test_the_timeout_is_the_calls():
    assert parse(timeout=1.5).timeout_s == 1.5


def test_empty_forms_of_fields_pass():
    call = parse(
        tools=[], functions=None, use_beam_search=False, tool_choice="none", response_format={"type": "text"}
    )
    assert call.ignored == ()


def messages(*given):
    return request(messages=list(given)).prompt.messages


def test_messages_are_flattened_and_stripped_of_unknown_keys():
    assert messages(
        {"role": "developer", "content": "Be brief.", "cache_control": {"x": 1}},
        {"role": "user", "name": "ann", "content": [
            {"type": "text", "text": "a"}, {"type": "text", "text": "b"},
        ]},
        {"role": "assistant", "content": None, "refusal": None, "reasoning": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "extra": 1,
             "function": {"name": "f", "arguments": '{"x": [1.5]}', "strict": True}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}},
            {"id": "c3", "type": "function", "function": {"name": "h", "arguments": '{"broken": NaN'}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ) == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb", "name": "ann"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"x": [1.5]}}, "id": "c1"},
            {"type": "function", "function": {"name": "g", "arguments": {}}, "id": "c2"},
            {"type": "function", "function": {"name": "h", "arguments": '{"broken": NaN'}, "id": "c3"},
        ]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "message",
    [
        1,
        None,
        {},
        {"role": "root", "content": "x"},
        {"role": ["user"], "content": "x"},
        {"role": "user"},
        {"role": "user", "content": 1},
        {"role": "user", "content": [1]},
        {"role": "user", "content": [{"text": "x"}]},
        {"role": "user", "content": [{"type": "text", "text": None}]},
        {"role": "assistant"},
        {"role": "tool", "content": "x"},
        {"role": "user", "content": "x", "name": ""},
        {"role": "user", "content": "x", "name": 3},
        {"role": "assistant", "tool_calls": {}, "content": None},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f", "arguments": ""}}]},
        {"role": "assistant", "tool_calls": [{}] * 129},
        {"role": "user", "content": [{"type": "text", "text": ""}] * (MAX_CONTENT_PARTS + 1)},
    ],
)
def test_malformed_messages_name_their_place(message):
    error = refused(messages=[{"role": "user", "content": "x"}, message])
    assert (error.param or "").startswith("messages.1")


@pytest.mark.parametrize("place", ["messages", "stream_options"])
def test_numbers_that_are_not_finite_are_refused_even_where_nobody_looks(place):
    hidden = {
        "messages": [{"role": "user", "content": "x", "y": [float("nan")]}],
        "stream_options": {"y": 1e999},
    }
    with pytest.raises(InvalidBody):
        parse(stream=True, **{place: hidden[place]})


def test_too_many_messages_are_refused():
    assert refused(messages=[{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)).param == "messages"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_media_is_refused_without_looking_at_it(kind):
    error = refused(
        messages=[{"role": "user", "content": [{"type": kind, kind: {"url": "http://169.254.169.254/"}}]}]
    )
    assert isinstance(error, UnsupportedField)
    assert "169" not in error.message


def test_the_template_is_told_what_the_client_says():
    plain = request().prompt.templating
    assert (plain.variables, plain.add_generation_prompt, plain.continue_final_message) == ({}, True, False)
    given = request(chat_template_kwargs={"enable_thinking": False}, add_generation_prompt=False)
    assert given.prompt.templating == Templating(
        variables={"enable_thinking": False}, add_generation_prompt=False
    )
    goes_on = request(continue_final_message=True).prompt.templating
    assert (goes_on.continue_final_message, goes_on.add_generation_prompt) == (True, False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"n" * 65: 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": "y" * 16_384}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"n{i}": 1 for i in range(65)}}, "chat_template_kwargs"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"continue_final_message": "true"}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
def test_what_the_template_may_not_be_told(fields, param):
    assert refused(**fields).param == param


# --- answers, byte by byte -------------------------------------------------------------


def renderer(monkeypatch, **fields):
    monkeypatch.setattr("time.time", lambda: 1_750_000_000.9)
    return parse(**fields).renderer("abc", model_info())


HEAD = (
    b'{"id":"chatcmpl-abc","object":"chat.completion.chunk","created":1750000000,"model":"demo",'
    b'"system_fingerprint":"fp_'
)


def delta(text="", index=0, finish=None, **fields):
    return TokenDelta(request_id="abc", index=index, text=text, finish=finish, **fields)


def test_the_bytes_of_a_stream(monkeypatch):
    writer = renderer(monkeypatch, stream=True)
    written = writer.event(0, delta('é"\n\x01')) + writer.event(0, delta("b", finish=FinishReason.STOP))
    parts = (written + writer.end(Usage())).split(b"\n\n")
    start = HEAD + parts[0].split(b'"fp_')[1][:10]
    assert all(
        part.startswith(b"data: " + start + b'","choices":[{"index":0,"delta":{') for part in parts[:-2]
    )
    assert [part.split(b'"delta":')[1] for part in parts[:-2]] == [
        b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}',
        '{"content":"é\\"\\n\\u0001"},"logprobs":null,"finish_reason":null}]}'.encode(),
        b'{"content":"b"},"logprobs":null,"finish_reason":null}]}',
        b'{},"logprobs":null,"finish_reason":"stop"}]}',
    ]
    assert parts[-2:] == [b"data: [DONE]", b""]


def test_reasoning_effort_is_for_the_template():
    assert request(reasoning_effort="low").prompt.templating.variables == {"reasoning_effort": "low"}
    none = request(reasoning_effort="none").prompt.templating.variables
    assert none == {"reasoning_effort": "none", "enable_thinking": False}
    own = {"enable_thinking": True, "other": 1}
    kept = request(reasoning_effort="none", chat_template_kwargs=own).prompt.templating.variables
    assert kept == {"reasoning_effort": "none", **own}


def test_thinking_token_budget_limits_the_thoughts():
    assert request(thinking_token_budget=64).thinking_tokens == 64
    assert request().thinking_tokens is None


def test_usage_tells_the_tokens_of_thoughts():
    assert "completion_tokens_details" not in usage_fields(Usage(completion_tokens=9))
    thought = usage_fields(Usage(completion_tokens=9, reasoning_tokens=4))
    assert thought["completion_tokens_details"] == {"reasoning_tokens": 4}
    total = Usage.total([Usage(reasoning_tokens=4), Usage(reasoning_tokens=3)])
    assert total.reasoning_tokens == 7


def test_usage_comes_in_a_chunk_without_choices_and_is_null_before(monkeypatch):
    writer = renderer(monkeypatch, stream=True, stream_options={"include_usage": True})
    assert writer.event(0, delta("a")).count(b'}],"usage":null}\n\n') == 2
    end = writer.end(Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=3))
    assert end.endswith(
        b'","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,'
        b'"prompt_tokens_details":{"cached_tokens":3}}}\n\ndata: [DONE]\n\n'
    )


def test_each_choice_opens_with_its_role_and_empty_steps_are_silent(monkeypatch):
    writer = renderer(monkeypatch, stream=True, n=2)
    assert writer.event(0, delta("a", index=1)).count(b'"role":"assistant"') == 1
    assert writer.event(0, delta("", index=1)) == b""
    assert writer.event(0, delta("", index=0)).count(b'"index":0,"delta":{"role":"assistant"') == 1


def test_logprobs_of_a_chunk(monkeypatch):
    writer = renderer(monkeypatch, stream=True, logprobs=True, top_logprobs=2)
    first = delta("a", logprobs=(logprob_of("a", 2, value=float("-inf")),))
    chunk = json.loads(writer.event(0, first).split(b"\n\n")[1].removeprefix(b"data: "))
    (entry,) = chunk["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -9999.0, [97])
    assert [top["token"] for top in entry["top_logprobs"]] == ["a", "a~1"]


@pytest.mark.parametrize(
    ("value", "sent"),
    [(float("-inf"), -9999.0), (float("nan"), -9999.0), (-2.5, -2.5), (-0.0, 0.0), (1e-9, 0.0)],
)
def test_log_probabilities_are_always_numbers(value, sent):
    assert logprob_value(value) == sent
