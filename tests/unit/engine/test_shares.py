"""How a step's prompt tokens are divided: pieces for long prompts, room for short ones behind them."""

from __future__ import annotations

from serve_app.engine.shares import LEAST_PIECE, Shares


def divide(budget: int, *wanted: int) -> list[int]:
    """What prompts of one priority get, in their order."""
    shares = Shares(budget)
    granted = []
    for number in wanted:
        granted.append(None if shares.closed(0) or not shares.admits(number) else shares.ask(0, number))
    shares.settle()
    return [0 if share is None else share.tokens for share in granted]


def test_prompts_that_fit_get_all() -> None:
    assert divide(100, 40, 50) == [40, 50]


def test_a_prompt_that_does_not_fit_gets_the_rest_when_nobody_is_much_shorter() -> None:
    assert divide(100, 40, 300, 200) == [40, 60, 0]


def test_a_short_prompt_overtakes_and_the_long_one_keeps_at_least_half() -> None:
    assert divide(100, 2000, 30) == [70, 30]
    assert divide(100, 2000, 30, 30, 20) == [50, 30, 0, 20], "too small a piece for the third"
    assert divide(100, 2000, 600, 25) == [50, 25, 25]


def test_an_overtaking_prompt_gets_no_tiny_piece() -> None:
    assert divide(2 * LEAST_PIECE - 2, 2000, 4) == [2 * LEAST_PIECE - 2, 0]


def test_a_lower_priority_does_not_overtake() -> None:
    shares = Shares(100)
    long = shares.ask(5, 2000)
    assert shares.closed(4)
    shares.settle()
    assert long.tokens == 100


def test_the_first_prompt_always_gets_something() -> None:
    assert divide(1, 2000) == [1]
