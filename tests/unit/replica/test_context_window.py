"""What gives way when a request is larger than its model, by what the dialect allows."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.errors import InvalidField, PromptTooLong
from serve_app.replica.context_window import ContextWindow
from serve_app.types import GenerateRequest, Overflow, Prompt, SamplingParams

PROMPT = list(range(60))


def fit(
    window: ContextWindow, prompt: int, max_tokens: int | None, **fields: Any
) -> tuple[int | None, list[int]]:
    request = GenerateRequest(
        id="r", model="m", prompt=Prompt(text=""), sampling=SamplingParams(max_tokens=max_tokens), **fields
    )
    fitted, ids = window.fit(request, PROMPT[:prompt])
    return fitted.sampling.max_tokens, ids


@pytest.mark.parametrize("overflow", list(Overflow))
def test_what_fits_is_left_alone(overflow: Overflow) -> None:
    assert fit(ContextWindow(100, 50), 40, 30, overflow=overflow) == (30, PROMPT[:40])
    assert fit(ContextWindow(100), 40, None, overflow=overflow) == (None, PROMPT[:40])
    assert fit(ContextWindow(100, 50), 10, 0, overflow=overflow) == (0, PROMPT[:10])  # echo alone


@pytest.mark.parametrize("overflow", list(Overflow))
def test_without_a_wish_the_models_limit_holds_within_the_window(overflow: Overflow) -> None:
    assert fit(ContextWindow(100, 50), 30, None, overflow=overflow)[0] == 50
    if overflow is not Overflow.WINDOW:
        assert fit(ContextWindow(100, 50), 60, None, overflow=overflow)[0] == 40


def test_an_error_is_left_to_the_engine_where_the_window_is_too_small() -> None:
    assert fit(ContextWindow(50), 40, 20) == (20, PROMPT[:40])
    with pytest.raises(InvalidField, match="from 1 to 15"):
        fit(ContextWindow(50, 15), 4, 16)


def test_the_output_may_run_into_the_end_of_the_window() -> None:
    assert fit(ContextWindow(50), 40, 50, overflow=Overflow.WINDOW)[0] == 10
    with pytest.raises(InvalidField, match="max_tokens must be from 1 to 20"):
        fit(ContextWindow(50, 20), 4, 21, overflow=Overflow.WINDOW)
    fit(ContextWindow(50, 20), 30, 20, overflow=Overflow.WINDOW)
    with pytest.raises(PromptTooLong, match="at most 30"):
        fit(ContextWindow(50, 20), 31, 1, overflow=Overflow.WINDOW)


def test_a_clamp_shortens_the_output_to_both_limits() -> None:
    assert fit(ContextWindow(50), 40, 1_000, overflow=Overflow.CLAMP)[0] == 10
    assert fit(ContextWindow(50, 5), 4, 1_000, overflow=Overflow.CLAMP)[0] == 5
    assert fit(ContextWindow(50), 50, 1_000, overflow=Overflow.CLAMP) == (
        1_000,
        PROMPT[:50],
    )  # the engine refuses it


def test_truncation_keeps_the_end_of_the_prompt_and_a_quarter_for_the_output() -> None:
    assert fit(ContextWindow(40), 60, None, overflow=Overflow.TRUNCATE) == (None, PROMPT[30:])
    assert fit(ContextWindow(40), 60, 4, overflow=Overflow.TRUNCATE) == (4, PROMPT[24:])
    assert fit(ContextWindow(40), 60, 100, overflow=Overflow.TRUNCATE) == (10, PROMPT[30:])
    assert fit(ContextWindow(40), 30, 100, overflow=Overflow.TRUNCATE) == (10, PROMPT[:30])


@pytest.mark.parametrize(
    ("keep", "kept"), [(1, PROMPT[59:]), (59, PROMPT[1:]), (100, PROMPT), (-1, PROMPT[21:])]
)
def test_a_client_may_ask_for_the_last_tokens_alone(keep: int, kept: list[int]) -> None:
    assert fit(ContextWindow(40), 60, None, truncate_prompt=keep)[1] == kept
