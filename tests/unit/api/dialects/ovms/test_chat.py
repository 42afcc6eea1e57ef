"""OpenVINO Model Server's bodies: what every field becomes, and when several sequences are beams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve_app.api.dialects.ovms.chat import ChatDialect
from serve_app.api.dialects.ovms.completions import CompletionDialect
from serve_app.api.protocol.dialect import Call, Choice
from serve_app.config import OvmsConfig
from serve_app.errors import InvalidField
from serve_app.types import (
    Beam,
    EarlyStopping,
    FinishReason,
    GenerateRequest,
    GrammarKind,
    Overflow,
    ProcessorCall,
    Prompt,
    SamplingParams,
    Templating,
    TokenDelta,
    ToolMode,
    Usage,
)
from tests.support.fakes_backend import model_info
from tests.support.gateway import chat_body, completion_body

CURRENT = OvmsConfig(profile="current")


def parse(config: OvmsConfig | None = None, **fields: Any) -> Call:
    return ChatDialect(config or OvmsConfig()).parse(json.dumps(chat_body(**fields)).encode())


def request(config: OvmsConfig | None = None, **fields: Any) -> GenerateRequest:
    (found,) = parse(config, **fields).requests
    return found


def refused(config: OvmsConfig | None = None, **fields: Any) -> str:
    with pytest.raises(InvalidField) as caught:
        parse(config, **fields)
    return str(caught.value.param)


def test_the_defaults() -> None:
    found, call = request(), parse()
    assert found.sampling == SamplingParams(temperature=0.0, seed=0)
    assert (found.n, found.best_of, found.beam, found.rank_length_penalty) == (1, None, None, None)
    assert (found.stop, found.include_stop, found.skip_special_tokens) == ((), False, True)
    assert (found.logprobs, found.prompt_logprobs, found.truncate_prompt) == (None, None, None)
    assert (found.overflow, found.reasoning, found.stream) == (Overflow.CLAMP, False, False)
    assert (call.stream, call.timeout_s, call.ignored) == (False, None, ())


def test_the_defaults_of_today() -> None:
    assert request(CURRENT).sampling == SamplingParams(temperature=1.0, top_k=40)
    assert request(CURRENT, top_k=-1, seed=0).sampling == SamplingParams(temperature=1.0, seed=0)
    assert refused(CURRENT, top_k=0) == "top_k"
    assert refused(CURRENT, min_p=1.0) == "min_p"
    assert request(CURRENT, min_p=0.999).sampling.min_p == 0.999
    assert request(min_p=1.0).sampling.min_p == 1.0


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("temperature", 2, 2.0),
        ("top_p", 0.1, 0.1),
        ("top_k", 5, 5),
        ("top_k", -1, 0),
        ("min_p", 0.1, 0.1),
        ("repetition_penalty", 1.2, 1.2),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 2, 2.0),
        ("seed", 2**32 - 1, 2**32 - 1),
        ("min_tokens", 3, 3),
        ("max_tokens", 9, 9),
        ("max_completion_tokens", 9, 9),
        ("ignore_eos", True, True),
        ("stop_token_ids", [1, 2.0], (1, 2)),
        ("logit_bias", {"5": 100}, ((5, 100.0),)),
        ("logits_processors", ["a"], (ProcessorCall(name="a"),)),
    ],
)
def test_sampling_fields(field: str, value: Any, expected: Any) -> None:
    name = {"max_completion_tokens": "max_tokens", "logits_processors": "processors"}.get(field, field)
    assert getattr(request(**{field: value}).sampling, name) == expected


@pytest.mark.parametrize(
    ("field", "value", "name", "expected"),
    [
        ("stop", "x", "stop", ("x",)),
        ("include_stop_str_in_output", True, "include_stop", True),
        ("skip_special_tokens", False, "skip_special_tokens", False),
        ("prompt_logprobs", 2, "prompt_logprobs", 2),
        ("truncate_prompt_tokens", -1, "truncate_prompt", -1),
        ("truncate_prompt_tokens", 7, "truncate_prompt", 7),
        ("logprobs", True, "logprobs", 0),
        ("stream", True, "stream", True),
    ],
)
def test_other_fields(field: str, value: Any, name: str, expected: Any) -> None:
    assert getattr(request(**{field: value}), name) == expected


def test_the_user_is_kept_for_stickiness() -> None:
    assert parse(user="ann").user == "ann"


def test_sequences_are_beams_where_nothing_is_drawn() -> None:
    found = request(best_of=4, n=2)
    assert (found.beam, found.n, found.best_of) == (Beam(width=4), 2, None)
    assert request(best_of=4, temperature=0).beam == Beam(width=4)
    shaped = request(
        best_of=4,
        temperature=1.5,
        use_beam_search=True,
        length_penalty=-0.5,
        early_stopping="never",
        num_beam_groups=2,
    )
    assert shaped.beam == Beam(
        width=4,
        length_penalty=-0.5,
        early_stopping=EarlyStopping.NEVER,
        groups=2,
        diversity_penalty=1.0,  # the default, which has a meaning now that there are groups
    )
    assert request(best_of=4, num_beam_groups=4, diversity_penalty=3).beam == Beam(
        width=4, groups=4, diversity_penalty=3.0
    )


def test_sequences_are_ranked_samples_where_something_is_drawn() -> None:
    found = request(best_of=4, n=2, temperature=0.5, length_penalty=2)
    assert (found.beam, found.n, found.best_of, found.rank_length_penalty) == (None, 2, 4, 2.0)
    assert request(best_of=4, temperature=0.5).rank_length_penalty == 1.0  # the mean
    assert request(CURRENT, best_of=4).beam is None


def test_samples_stream_where_all_of_them_are_returned() -> None:
    assert request(n=2, best_of=2, temperature=1, stream=True).best_of == 2


def test_an_answer_without_an_end_has_a_bound() -> None:
    assert request(ignore_eos=True).sampling.max_tokens == 4000
    assert request(ignore_eos=True, max_tokens=4000).sampling.max_tokens == 4000
    assert request(CURRENT, ignore_eos=True).sampling.max_tokens is None
    assert request(CURRENT, ignore_eos=True, max_tokens=9999).sampling.max_tokens == 9999


def test_the_bound_of_best_of_is_a_setting() -> None:
    assert request(OvmsConfig(best_of_limit=30), best_of=30).beam == Beam(width=30)


@pytest.mark.parametrize("config", [OvmsConfig(), CURRENT])
def test_contents_are_text_or_text_parts(config: OvmsConfig) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert request(config, messages=messages).prompt.messages == ({"role": "user", "content": "a\nb"},)


def test_a_model_complains_about_fields_by_the_clients_names() -> None:
    names = parse(best_of=2, max_completion_tokens=5).names
    assert names["beam_width"] == "best_of"
    assert names["beam_groups"] == "num_beam_groups"
    assert names["max_tokens"] == "max_completion_tokens"
    assert names["prompt"] == "messages"


def test_tools_and_forms() -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    assert request(tools=tools, tool_choice="required").tool_choice.mode is ToolMode.REQUIRED
    assert request(functions=[function], function_call={"name": "f"}).tool_choice.name == "f"
    assert refused(tools=tools, functions=[function]) == "functions"
    assert refused(functions=[function], tool_choice="auto") == "tool_choice"
    grammar = request(response_format={"type": "json_object"}).grammar
    assert grammar is not None
    assert grammar.kind is GrammarKind.JSON
    assert request(guided_regex="a", bad_words=3).grammar is None  # fields of other protocols


def test_a_completion_has_one_raw_prompt() -> None:
    def prompt(value: Any) -> Prompt:
        raw = json.dumps(completion_body(prompt=value)).encode()
        (found,) = CompletionDialect(OvmsConfig()).parse(raw).requests
        return found.prompt

    assert prompt("Once") == prompt(["Once"]) == Prompt(text="Once")
    assert prompt([1, 2]) == prompt([[1, 2]]) == Prompt(token_ids=(1, 2))
    for several in (["a", "b"], [[1], [2]]):
        with pytest.raises(InvalidField, match="one prompt"):
            prompt(several)


def test_the_template_takes_variables_and_whether_the_prompt_ends_before_the_answer() -> None:
    assert templating(None) == Templating()
    given = {"enable_thinking": False, "add_generation_prompt": False}
    assert templating(given) == Templating(variables={"enable_thinking": False}, add_generation_prompt=False)
    wrongs: tuple[Any, ...] = (5, [], {"messages": []}, {"add_generation_prompt": 1})
    for wrong in wrongs:
        assert refused(chat_template_kwargs=wrong) == "chat_template_kwargs"


def templating(given: Any) -> Templating:
    found = request(chat_template_kwargs=given).prompt.templating
    assert found is not None
    return found


def test_today_thoughts_have_a_field_of_their_own() -> None:
    assert not request().reasoning
    assert request(CURRENT).reasoning
    thought = TokenDelta(request_id="x", index=0, token_ids=(1,), reasoning="hm")
    said = parse(CURRENT, stream=True).renderer("x", model_info()).event(0, thought)
    assert b'"delta":{"role":"assistant","reasoning_content":"hm"}' in said
    choice = Choice(text="yes", reasoning="hm", finish=FinishReason.EOS)
    whole = json.loads(parse(CURRENT).renderer("x", model_info()).whole([choice], Usage()))
    assert whole["choices"][0]["message"] == {
        "content": "yes",
        "role": "assistant",
        "reasoning_content": "hm",
    }
