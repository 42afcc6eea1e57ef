"""Answers that a Python client puts together from deltas, and the requests it writes. No Ray."""

from serve_app.channel.frames import request_decoder
from serve_app.deployments.client import Answer, _add, _identified, _payload
from serve_app.types import (
    Beam,
    EmbedRequest,
    FinishReason,
    Templating,
    TextLogprob,
    Timing,
    TokenDelta,
    ToolCallDelta,
    Usage,
)


def delta(**fields):
    return TokenDelta(request_id="r", **{"index": 0, **fields})


def answers_of(deltas, n=1):
    answers = [Answer() for _ in range(n)]
    for each in deltas:
        _add(answers, each)
    return answers


def test_an_answer_has_all_that_its_deltas_brought():
    token = TextLogprob(5, "a", b"a", -0.5)
    first = TextLogprob(1, "p", b"p", None)
    (answer,) = answers_of(
        [
            delta(reasoning="hm", token_ids=(4,), timing=Timing(first_token_s=0.5), prompt_text="p",
                  prompt_logprobs=(first,)),
            delta(text="a", token_ids=(5,), logprobs=(token,), usage=Usage(completion_tokens=2)),
            delta(tool_calls=(ToolCallDelta(index=0, id="c1", name="f", arguments='{"x"'),)),
            delta(tool_calls=(ToolCallDelta(index=0, arguments=":1}"),)),
            delta(tool_calls=(ToolCallDelta(index=1, id="c2", name="g"),), token_ids=(6,),
                  finish=FinishReason.TOOL_CALLS, usage=Usage(prompt_tokens=1, completion_tokens=3)),
        ]
    )  # fmt: skip
    assert (answer.text, answer.reasoning, answer.token_ids) == ("a", "hm", [4, 5, 6])
    assert answer.logprobs == [token]
    assert (answer.prompt_text, answer.prompt_logprobs) == ("p", (first,))
    assert [(c.id, c.name, c.arguments) for c in answer.calls] == [("c1", "f", '{"x":1}'), ("c2", "g", "")]
    assert (answer.finish, answer.stop) == (FinishReason.TOOL_CALLS, None)
    assert answer.timing == Timing(first_token_s=0.5)
    assert answer.usage == Usage(prompt_tokens=1, completion_tokens=3)


def test_choices_are_separate_and_share_their_usage():
    one, two = answers_of(
        [
            delta(text="a", finish=FinishReason.STOP, stop="x", usage=Usage(completion_tokens=1)),
            delta(index=1, text="b", finish=FinishReason.LENGTH, usage=Usage(completion_tokens=2)),
        ],
        n=2,
    )
    assert (one.text, one.stop, two.text, two.stop) == ("a", "x", "b", None)
    assert one.usage == two.usage == Usage(completion_tokens=2)


def test_fields_of_the_prompt_and_of_the_request_find_their_place():
    request = request_decoder.decode(
        _payload(
            "m",
            {
                "messages": [{"role": "user", "content": "x"}],
                "templating": Templating(continue_final_message=True),
                "beam": Beam(width=3),
                "n": 2,
            },
        )
    )
    assert request.prompt.messages == ({"role": "user", "content": "x"},)
    assert request.prompt.templating.continue_final_message
    assert (request.beam, request.n, request.model) == (Beam(width=3), 2, "m")


def test_a_question_without_an_id_gets_one():
    asked = EmbedRequest(id="", inputs=("x",))
    assert _identified(asked).id != _identified(asked).id != ""
    assert _identified(EmbedRequest(id="own", inputs=("x",))).id == "own"
