"""Our own proposals of drafts: what followed before, and ever rarer where that fails."""

from __future__ import annotations

import random

from serve_app.engine.sampling.prompt_lookup import (
    Chances,
    ForecastLookup,
    PromptLookup,
    PromptLookupFactory,
)
from serve_app.types import Draft, EngineRequest


def lookup(tokens: list[int], most: int = 8, **options: int) -> tuple[int, ...]:
    proposer = PromptLookup(most, **{"vocab_size": 100, "max_tokens": 1000, **options})
    proposer.learn(2, 2)
    proposer.learn(4, 4)
    return proposer.propose(tokens, most)


def test_a_proposal_is_what_followed_before() -> None:
    assert lookup([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]) == (4, 5, 6, 7, 8, 9, 1, 2)
    assert lookup([1, 2, 3, 4, 9, 2, 3]) == (4, 9, 2, 3, 4, 9, 2, 3)  # and so on
    assert lookup([1, 2, 3, 4]) == ()
    assert lookup([5, 1, 2, 9, 1, 2, 8, 1, 2]) == (8, 1, 2, 8, 1, 2, 8, 1)  # the latest place


def test_a_proposal_keeps_to_the_vocabulary_and_the_window() -> None:
    assert lookup([1, 2, 3, 400, 5, 1, 2]) == (3,)
    assert lookup([1, 2, 3, 4, 5, 6, 1, 2], max_tokens=11) == (3, 4)
    assert lookup([1, 2, 3, 4, 5, 6, 1, 2], max_tokens=9) == ()


def test_failures_make_proposals_shorter_and_rarer() -> None:
    proposer = PromptLookup(8, vocab_size=100, max_tokens=10_000)
    proposed = 0
    for _ in range(300):
        draft = proposer.propose([1, 2] * 20, 8)
        proposed += len(draft)
        if draft:
            proposer.learn(len(draft), 0)
    assert 0 < proposed < 20


def forecasting(shared: Chances | None = None, **options: int) -> ForecastLookup:
    return ForecastLookup(shared or Chances(), **{"vocab_size": 100, "max_tokens": 10_000, **options})


def test_a_forecast_is_sure_of_a_text_that_goes_on_repeating_itself() -> None:
    made, tokens = forecasting(), list(range(10)) * 2
    assert made.forecast(tokens).following == 0.0  # nothing is known before a guess could be right
    for count in range(30):
        tokens.append(count % 10)
        made.forecast(tokens)
    forecast = made.forecast(tokens)
    assert forecast.first == forecast.following > 0.95
    assert made.propose(tokens, 12) == (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1)


def test_a_forecast_promises_nothing_of_a_text_that_does_not_repeat_itself() -> None:
    made, tokens, rng = forecasting(vocab_size=50), [0, 1], random.Random(0)
    for _ in range(2_000):  # of 2,500 pairs, most have been there before
        tokens.append(rng.randrange(50))
        made.forecast(tokens)
    assert made.forecast(tokens).first < 0.15


def test_a_forecast_reads_all_that_was_appended_since_the_last_one() -> None:
    often, rarely = forecasting(), forecasting()
    tokens = [number % 7 for number in range(90)]
    for end in range(10, 91):
        often.forecast(tokens[:end])
    for end in (10, 11, 40, 90):
        rarely.forecast(tokens[:end])
    assert often.forecast(tokens) == rarely.forecast(tokens)
    assert often.propose(tokens, 9) == rarely.propose(tokens, 9) == (6, 0, 1, 2, 3, 4, 5, 6, 0)


def test_a_forecast_keeps_to_the_vocabulary_and_the_window() -> None:
    made = forecasting(max_tokens=12)
    assert made.forecast([1, 2, 3, 4, 5, 6, 1, 2]).most == 3
    assert made.propose([1, 2, 3, 4, 5, 6, 1, 2], 3) == (3, 4, 5)
    virtual = forecasting()
    assert virtual.forecast([1, 2, 300, 4, 1, 2]).most == 0
    assert forecasting(max_tokens=7).forecast([1, 2, 3, 4, 1, 2]).most == 0


def test_a_forecast_begins_with_what_other_sequences_saw() -> None:
    shared = Chances()
    first, tokens = forecasting(shared), [1, 2, 3] * 2
    for count in range(300):
        tokens.append(1 + count % 3)
        first.forecast(tokens)
    assert forecasting(shared).forecast([1, 2, 3, 1, 2]).following > 0.9


def test_a_shorter_text_is_read_anew() -> None:
    made = forecasting()
    made.forecast([1, 2, 3, 4, 5, 6, 7, 1, 2])
    made.forecast([1, 2, 8])
    assert made.forecast([1, 2, 8, 1, 2]).most > 0
    assert made.propose([1, 2, 8, 1, 2], 2) == (8, 1)


def test_an_engine_guesses_by_itself_unless_its_steps_overlap() -> None:
    request = EngineRequest(id="r", token_ids=(1, 2))
    made = {
        (most, overlap): PromptLookupFactory.of_engine(most, overlap, vocab_size=100, window=50).of(request)
        for most in (None, 0, 3)
        for overlap in (False, True)
    }
    assert isinstance((made[None, False] or list)(), ForecastLookup)
    assert made[None, True] is made[0, False] is made[0, True] is None
    assert all(isinstance((made[3, overlap] or list)(), PromptLookup) for overlap in (False, True))
    drafted = EngineRequest(id="r", token_ids=(1, 2), draft=Draft(token_ids=(3,)))
    assert PromptLookupFactory.of_engine("auto", False, vocab_size=100, window=50).of(drafted) is None
