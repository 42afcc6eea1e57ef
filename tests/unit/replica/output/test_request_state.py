"""A step of several tokens, told one by one."""

from __future__ import annotations

import pytest

from serve_app.replica.output.request_state import RequestState
from serve_app.text.answer.output_text import OutputText
from serve_app.text.tokens.tokenizer import Tokenizer
from serve_app.types import (
    EngineOutput,
    FinishReason,
    GenerateRequest,
    PositionLogprobs,
    Prompt,
    StepTiming,
    TextLogprob,
    Timing,
)
from tests.support.tiny_llama import make_tiny_llama

STEPS = tuple(StepTiming(batch_size=k, wait_s=0.1, run_s=0.2) for k in (1, 2, 3))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_llama(tmp_path_factory.mktemp("tiny")))


def generation(tokenizer: Tokenizer, **fields: object) -> RequestState:
    request = GenerateRequest(id="r", model="m", prompt=Prompt(text="x"), **fields)  # type: ignore[arg-type]
    return RequestState(
        request,
        [1],
        new_output=lambda: OutputText(tokenizer, stop=request.stop),
        new_parser=lambda: None,
        prompt_text=None,
        describe=lambda position: TextLogprob(position.token_id, "", b"", position.logprob),
        first_prompt_token=None,
    )


def output(*token_ids: int) -> EngineOutput:
    return EngineOutput(
        request_id="r",
        index=0,
        token_ids=token_ids,
        logprobs=tuple(PositionLogprobs(i, -1.0) for i in token_ids),
        finish=FinishReason.LENGTH,
        timing=Timing(queue_s=1.0),
        steps=STEPS,
    )


def test_each_token_has_a_delta_with_its_step_and_the_last_one_the_end(tokenizer: Tokenizer) -> None:
    deltas = generation(tokenizer, per_token=True).push(output(40, 41, 42)).deltas
    assert [delta.token_ids for delta in deltas] == [(40,), (41,), (42,)]
    assert [delta.step for delta in deltas] == list(STEPS)
    assert [delta.finish for delta in deltas] == [None, None, FinishReason.LENGTH]
    assert [delta.usage.completion_tokens for delta in deltas] == [1, 2, 3]
    assert [delta.timing is None for delta in deltas] == [False, True, True]


def test_without_the_wish_a_step_is_one_delta(tokenizer: Tokenizer) -> None:
    (delta,) = generation(tokenizer).push(output(40, 41, 42)).deltas
    assert delta.token_ids == (40, 41, 42)
    assert delta.step is None


def test_candidates_of_equal_likelihood_tie_however_their_tokens_came(tokenizer: Tokenizer) -> None:
    state = generation(tokenizer, best_of=2)
    logprobs = (-0.1, -0.2, -0.3)  # their sum depends on the order in which they are rounded

    def part(index: int, first: int, values: tuple[float, ...], finish: FinishReason | None) -> EngineOutput:
        positions = tuple(PositionLogprobs(first + i, value) for i, value in enumerate(values))
        ids = tuple(position.token_id for position in positions)
        return EngineOutput(request_id="r", index=index, token_ids=ids, logprobs=positions, finish=finish)

    for i, value in enumerate(logprobs):
        state.push(part(0, 40 + i, (value,), FinishReason.LENGTH if i == 2 else None))
    state.push(part(1, 60, logprobs[:1], None))
    (delta,) = state.push(part(1, 61, logprobs[1:], FinishReason.LENGTH)).deltas
    assert delta.token_ids == (40, 41, 42), "the earlier one wins a tie"
