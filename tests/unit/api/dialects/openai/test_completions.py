"""The completions dialect: prompts in all forms, echo, and the old shape of log-probabilities."""

import json

import pytest

from serve_app.api.dialects.chat.legacy_logprobs import LegacyLogprobs
from serve_app.api.dialects.openai.completions import CompletionDialect
from serve_app.errors import InvalidField, PromptTooLong
from serve_app.limits import MAX_PROMPT_CHARS
from serve_app.types import FinishReason, Prompt, TextLogprob, TokenDelta
from tests.support.fakes_backend import logprob_of, model_info
from tests.support.gateway import completion_body


def parse(**fields):
    return CompletionDialect().parse(json.dumps(completion_body(**fields)).encode())


def prompts(prompt):
    return [request.prompt for request in parse(prompt=prompt).requests]


def test_every_form_of_prompt():
    assert prompts("a") == [Prompt(text="a")]
    assert prompts(["a", "b"]) == [Prompt(text="a"), Prompt(text="b")]
    assert prompts([1, 2.0]) == [Prompt(token_ids=(1, 2))]
    assert prompts([[1], [2, 3]]) == [Prompt(token_ids=(1,)), Prompt(token_ids=(2, 3))]


def test_a_prompt_is_bounded_in_characters():
    with pytest.raises(PromptTooLong):
        parse(prompt="x" * (MAX_PROMPT_CHARS + 1))


def test_suffix_goes_with_text_only():
    assert parse(suffix="end").requests[0].prompt == Prompt(text="Once", suffix="end")
    assert parse(suffix="").requests[0].prompt == Prompt(text="Once")
    with pytest.raises(InvalidField) as caught:
        parse(suffix="end", prompt=[1])
    assert caught.value.param == "suffix"


def test_echo_with_logprobs_asks_for_those_of_the_prompt():
    assert parse(echo=True, logprobs=2).requests[0].prompt_logprobs == 2
    assert parse(echo=True).requests[0].prompt_logprobs is None
    assert parse(logprobs=2).requests[0].prompt_logprobs is None
    assert parse(logprobs=0).requests[0].logprobs == 0


def delta(text="", finish=None, index=0, **fields):
    return TokenDelta(request_id="abc", index=index, text=text, finish=finish, **fields)


def test_the_bytes_of_a_stream(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_750_000_000.9)
    writer = parse(stream=True, prompt=["a", "b"], n=2).renderer("abc", model_info())
    written = writer.event(1, delta("ü", index=1)) + writer.event(1, delta("", index=1))
    written += writer.event(0, delta("x", finish=FinishReason.LENGTH))
    parts = written.split(b"\n\n")
    assert parts[0].startswith(
        b'data: {"id":"cmpl-abc","object":"text_completion","created":1750000000,"model":"demo",'
    )
    assert [part.split(b'"choices":')[1] for part in parts[:-1]] == [
        '[{"index":3,"text":"ü","logprobs":null,"finish_reason":null}]}'.encode(),
        b'[{"index":0,"text":"x","logprobs":null,"finish_reason":"length"}]}',
    ]


def test_offsets_run_on_over_the_chunks_of_a_stream_and_over_the_echo():
    writer = parse(stream=True, echo=True, logprobs=1).renderer("abc", model_info())
    prompt = (TextLogprob(1, "äb", "äb".encode(), None), logprob_of("c", 1))
    first = writer.event(
        0, delta("de", logprobs=(logprob_of("de", 1),), prompt_text="äbc", prompt_logprobs=prompt)
    )
    second = writer.event(0, delta("f", logprobs=(logprob_of("f", 1),)))
    one, two = (json.loads(raw[6:])["choices"][0] for raw in (first, second))
    assert one["text"] == "äbcde"
    assert one["logprobs"]["text_offset"] == [0, 2, 3]
    assert one["logprobs"]["token_logprobs"][0] is None
    assert two["logprobs"]["text_offset"] == [5]


def test_tokens_that_share_a_character_keep_distinct_names_and_true_offsets():
    halves = [TextLogprob(1, "\ufffd", b"\xc3", -1.0), TextLogprob(2, "\ufffd", b"\xa4", -1.0)]
    listed = LegacyLogprobs(0).add([*halves, logprob_of("x", 0)])
    assert listed["tokens"] == ["bytes:\\xc3", "bytes:\\xa4", "x"]
    assert listed["text_offset"] == [0, 0, 1]


def test_the_chosen_token_is_always_among_the_alternatives():
    unlikely = TextLogprob(
        9, "z", b"z", -7.0, (TextLogprob(1, "a", b"a", -0.1), TextLogprob(2, "b", b"b", -2.0))
    )
    assert LegacyLogprobs(1).add([unlikely])["top_logprobs"] == [{"a": -0.1, "z": -7.0}]
