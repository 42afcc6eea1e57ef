"""What gives way when a request is larger than its model, by what the dialect allows."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.errors import InvalidField, PromptTooLong
from serve_app.replica.context_window import ContextWindow, Fitted
from serve_app.types import Beam, GenerateRequest, Overflow, Prompt, SamplingParams

PROMPT = list(range(60))


def limits(context: int, output: int | None = None, default_output: int | None = None) -> ContextWindow:
    return ContextWindow(lambda beam: context, output, default_output)


def fitted(window: ContextWindow, prompt: int, max_tokens: int | None, **fields: Any) -> Fitted:
    request = GenerateRequest(
        id="r", model="m", prompt=Prompt(text=""), sampling=SamplingParams(max_tokens=max_tokens), **fields
    )
    return window.fit(request, PROMPT[:prompt])


def fit(
    window: ContextWindow, prompt: int, max_tokens: int | None, **fields: Any
) -> tuple[int | None, list[int]]:
    found = fitted(window, prompt, max_tokens, **fields)
    return found.request.sampling.max_tokens, found.token_ids


@pytest.mark.parametrize("overflow", list(Overflow))
def test_what_fits_is_left_alone(overflow: Overflow) -> None:
    assert fit(limits(100, 50), 40, 30, overflow=overflow) == (30, PROMPT[:40])
    assert fit(limits(100), 40, None, overflow=overflow) == (None, PROMPT[:40])
    assert fit(limits(100, 50), 10, 0, overflow=overflow) == (0, PROMPT[:10])  # echo alone


@pytest.mark.parametrize("overflow", list(Overflow))
def test_without_a_wish_the_models_limit_holds_within_the_window(overflow: Overflow) -> None:
    assert fit(limits(100, 50), 30, None, overflow=overflow)[0] == 50
    if overflow is not Overflow.WINDOW:
        assert fit(limits(100, 50), 60, None, overflow=overflow)[0] == 40


def test_a_length_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        PromptTooLong, match=r"requested 60 tokens \(40 in the prompt, 20 in the completion\)"
    ):
        fit(limits(50), 40, 20)
    with pytest.raises(InvalidField, match="from 1 to 15"):
        fit(limits(50, 15), 4, 16)


def test_the_output_may_run_into_the_end_of_the_window() -> None:
    assert fit(limits(50), 40, 50, overflow=Overflow.WINDOW)[0] == 10
    with pytest.raises(InvalidField, match="max_tokens must be from 1 to 20"):
        fit(limits(50, 20), 4, 21, overflow=Overflow.WINDOW)
    fit(limits(50, 20), 30, 20, overflow=Overflow.WINDOW)
    with pytest.raises(PromptTooLong, match="at most 30"):
        fit(limits(50, 20), 31, 1, overflow=Overflow.WINDOW)


def test_a_clamp_shortens_the_output_to_both_limits() -> None:
    assert fit(limits(50), 40, 1_000, overflow=Overflow.CLAMP)[0] == 10
    assert fit(limits(50, 5), 4, 1_000, overflow=Overflow.CLAMP)[0] == 5
    with pytest.raises(PromptTooLong, match="resulted in 50 tokens, which leaves no room for an answer"):
        fit(limits(50), 50, 1_000, overflow=Overflow.CLAMP)


def test_only_what_was_asked_for_and_shortened_is_told() -> None:
    assert fitted(limits(50), 40, 1_000, overflow=Overflow.CLAMP).clamped == 10
    assert fitted(limits(50), 40, 10, overflow=Overflow.CLAMP).clamped is None
    assert fitted(limits(50, 5), 40, None, overflow=Overflow.CLAMP).clamped is None


def test_a_search_has_the_window_that_the_cache_holds() -> None:
    window = ContextWindow(lambda beam: 50 if beam is None else 30)
    assert fit(window, 10, 1_000, overflow=Overflow.CLAMP, beam=Beam(width=4))[0] == 20


@pytest.mark.parametrize(("most", "kept"), [(5, 35), (0, 40), (39, 1), (40, 30), (1_000, 30), (None, 32)])
def test_as_many_as_fit_beside_the_length(most: int | None, kept: int) -> None:
    options: Any = {"truncate_prompt": -1, "overflow": Overflow.CLAMP, "left_to_model": ("max_tokens",)}
    assert fit(limits(40, default_output=8), 60, most, **options)[1] == PROMPT[60 - kept :]


def test_truncation_keeps_the_end_of_the_prompt_and_a_quarter_for_the_output() -> None:
    assert fit(limits(40), 60, None, overflow=Overflow.TRUNCATE) == (None, PROMPT[30:])
    assert fit(limits(40), 60, 4, overflow=Overflow.TRUNCATE) == (4, PROMPT[24:])
    assert fit(limits(40), 60, 100, overflow=Overflow.TRUNCATE) == (10, PROMPT[30:])
    assert fit(limits(40), 30, 100, overflow=Overflow.TRUNCATE) == (10, PROMPT[:30])


@pytest.mark.parametrize(("keep", "kept"), [(1, PROMPT[59:]), (39, PROMPT[21:]), (-1, PROMPT[21:])])
def test_a_client_may_ask_for_the_last_tokens_alone(keep: int, kept: list[int]) -> None:
    assert fit(limits(40), 60, None, truncate_prompt=keep)[1] == kept
    with pytest.raises(PromptTooLong, match="resulted in 41 tokens"):
        fit(limits(40), 60, None, truncate_prompt=41)
