"""How many log-probabilities of its prompt a request may ask for: all go to the gateway at once."""

from __future__ import annotations

import pytest

from serve_app.engine.request.validation import validate
from serve_app.errors import InvalidField
from serve_app.limits import MAX_LOGPROBS, MAX_PROMPT_LOGPROBS
from serve_app.types import EngineRequest, SamplingParams


def check(prompt: int, n: int, alternatives: int | None) -> None:
    validate(
        EngineRequest(
            id="a",
            token_ids=(1,) * prompt,
            sampling=SamplingParams(max_tokens=1),
            n=n,
            prompt_logprobs=alternatives,
        ),
        vocab_size=8,
        window=100_000,
    )


@pytest.mark.parametrize(
    ("prompt", "n", "alternatives"),
    [(11_904, 1, MAX_LOGPROBS), (MAX_PROMPT_LOGPROBS // 128, 128, 0), (90_000, 128, None)],
)
def test_as_many_as_a_message_holds_are_told(prompt: int, n: int, alternatives: int | None) -> None:
    check(prompt, n, alternatives)


@pytest.mark.parametrize(
    ("prompt", "n", "alternatives"), [(11_905, 1, 20), (2_000, 128, 20), (2_000, 128, 0)]
)
def test_more_are_refused_before_anything_is_computed(prompt: int, n: int, alternatives: int) -> None:
    with pytest.raises(InvalidField, match=f"prompt_logprobs: {n} x .* at most {MAX_PROMPT_LOGPROBS}"):
        check(prompt, n, alternatives)
