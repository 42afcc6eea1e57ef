"""How many prompt tokens a step takes, by what steps took before."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from serve_app.engine.pace import FEW, HELD, LEAST, Pace

ALONE = 512


def cost(decodes: int, prompt_tokens: int) -> float:
    """Seconds of a step on a machine that is measured easily."""
    return 0.010 + 0.0005 * decodes + 0.0003 * prompt_tokens


def settled(decodes: int, noise: float = 0.0) -> Pace:
    """A pace that has seen some steps, with `decodes` sequences decoding in the mixed ones."""
    rng = random.Random(0)
    pace = Pace(ALONE)
    pace.observe(0, 256, cost(0, 256))
    for _ in range(100):
        slower = 1.0 + noise * rng.random()
        pace.observe(1, 0, slower * cost(1, 0))
        pace.observe(decodes, 0, slower * cost(decodes, 0))
        tokens = pace.prompt_tokens(decodes)
        pace.observe(decodes, tokens, slower * cost(decodes, tokens))
    return pace


def test_the_number_is_fixed_where_nothing_decodes_and_before_there_are_measurements() -> None:
    pace = Pace(ALONE)
    assert pace.prompt_tokens(0) == pace.prompt_tokens(3) == ALONE
    pace.observe(3, 0, 0.01)
    assert pace.prompt_tokens(3) == ALONE
    assert settled(4).prompt_tokens(0) == ALONE


@pytest.mark.parametrize("decodes", [1, 4, 16, 60])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_step_with_prompts_holds_its_decodes_no_longer_than_it_may(decodes: int, noise: float) -> None:
    tokens = settled(decodes, noise).prompt_tokens(decodes)
    bound = cost(decodes, 0) + max(HELD * cost(decodes, 0), (1 + FEW / decodes**2) * cost(1, 0))
    assert 0.6 * bound < cost(decodes, tokens) < 1.25 * bound
    assert (decodes + tokens) % LEAST == 0


def test_it_keeps_between_its_bounds_whatever_it_is_told() -> None:
    rng = random.Random(1)
    for _ in range(200):
        pace = Pace(ALONE)
        for _ in range(30):
            pace.observe(
                rng.choice([0, 1, 7, 300]), rng.choice([0, 1, 40, 512]), rng.choice([0, 1e-9, 1, 1e6])
            )
            assert min(LEAST, ALONE) <= pace.prompt_tokens(rng.randrange(300)) <= ALONE


def test_the_fewer_decode_the_longer_they_may_wait() -> None:
    pieces = [settled(decodes).prompt_tokens(decodes) for decodes in (1, 2, 4, 8)]
    assert pieces == sorted(pieces, reverse=True)


def test_a_step_beside_decodes_has_no_more_rows_than_one_without() -> None:
    pace = Pace(ALONE)
    pace.observe(0, 256, 0.001)
    pace.observe(1, 0, 0.01)
    assert pace.prompt_tokens(1) + 1 == ALONE


def test_decodes_that_many_are_about_to_join_wait_as_long_as_they_will_then() -> None:
    pace = settled(16)
    pace.observe(4, 0, cost(4, 0))
    tokens = pace.prompt_tokens(4, sequences=16)
    assert 0.8 < cost(4, tokens) / ((1 + HELD) * cost(16, 0)) < 1.1
    assert tokens > pace.prompt_tokens(4) == pace.prompt_tokens(4, sequences=4)
    assert pace.prompt_tokens(16, sequences=17) == pace.prompt_tokens(16)  # one size


def test_a_slow_first_step_of_one_decode_does_not_count_once_larger_ones_were_faster() -> None:
    pace, other = settled(16), settled(16)
    pace.observe(1, 0, 3 * cost(16, 0))
    assert pace.prompt_tokens(1) <= other.prompt_tokens(1) * cost(16, 0) / cost(1, 0) + LEAST


def test_a_single_slow_step_changes_little() -> None:
    pace = settled(16)
    before = pace.prompt_tokens(16)
    pace.observe(16, before, 30.0)
    assert before // 3 <= pace.prompt_tokens(16) <= before


def test_it_follows_a_machine_that_becomes_faster() -> None:
    pace = settled(4)
    before = pace.prompt_tokens(4)
    for _ in range(20):
        tokens = pace.prompt_tokens(4)
        pace.observe(4, tokens, cost(4, 0) + 0.0001 * tokens)
    assert pace.prompt_tokens(4) > 2 * before


def test_a_small_step_stays_small() -> None:
    assert Pace(8).prompt_tokens(0) == Pace(8).prompt_tokens(5) == 8
    assert Pace.on("cpu", 8192).prompt_tokens(0) == ALONE
    assert Pace.on("cuda", 8192).prompt_tokens(0) == 8192


def test_steps_that_vary_cut_prompts_no_smaller_than_steady_ones() -> None:
    def learnt(decode_ms: tuple[float, float], token_ms: tuple[float, float]) -> Pace:
        pace = Pace(alone=512)
        pace.observe(0, 512, 0.512)
        for i in range(40):
            pace.observe(8, 0, decode_ms[i % 2] / 1e3)
            pace.observe(8, 32, (200.0 + 32 * token_ms[i % 2]) / 1e3)
        return pace

    steady = learnt((200.0, 200.0), (1.0, 1.0)).prompt_tokens(8)
    varying = learnt((140.0, 260.0), (0.6, 1.4)).prompt_tokens(8)  # the same means
    assert 0.75 * steady <= varying <= 1.25 * steady


def test_more_decodes_than_any_step_had_take_longer_by_prompt_tokens() -> None:
    pace = Pace(alone=512)
    pace.observe(0, 512, 0.512)
    pace.observe(16, 0, 0.020)
    # 32 decodes take 36 ms, 2.1 times that is 75.6, and 16 of them take 20.
    assert pace.prompt_tokens(16, sequences=32) == (16 + 55) // 16 * 16 - 16
    assert pace.prompt_tokens(16) == (16 + 22) // 16 * 16 - 16


def launched(decodes: int, prompt_tokens: int) -> float:
    """Seconds of a step on a device: decodes are a graph, and all others take 12 ms to launch."""
    computed = 0.001 + 0.00003 * decodes + 0.00002 * prompt_tokens
    return max(computed, 0.012) if prompt_tokens else computed


def on_device(seconds: Callable[[int, int], float], decodes: int) -> list[int]:
    """The pieces of a prompt without end."""
    pace, pieces = Pace.on("cuda", 2048), list[int]()
    pace.observe(0, 2048, seconds(0, 2048))
    for _ in range(100):
        pace.observe(decodes, 0, seconds(decodes, 0))
        pieces.append(pace.prompt_tokens(decodes))
        pace.observe(decodes, pieces[-1], seconds(decodes, pieces[-1]))
    return pieces


@pytest.mark.parametrize("decodes", [1, 4, 16])
def test_where_launching_decides_pieces_are_as_large_as_launching_allows(decodes: int) -> None:
    """By the tokens alone each piece would seem too dear, and they would be cut to crumbs."""
    pieces = on_device(launched, decodes)
    assert sorted(pieces[20:])[3] > 500  # but for a few that look whether fewer are cheaper now
    assert max(launched(decodes, piece) for piece in pieces[5:]) < 0.012 * 2.5


def test_where_tokens_decide_a_device_takes_a_quarter_more_than_fit() -> None:
    pieces = on_device(cost, 8)
    room = 1.125 * cost(8, 0)
    later = sorted(cost(0, piece) - cost(0, 0) for piece in pieces[40:])
    assert room < later[len(later) // 2] < 1.26 * room
    assert later[-1] < 3 * room  # looks what more would cost


def test_a_piece_that_was_dear_once_is_tried_again() -> None:
    pace = Pace.on("cuda", 2048)
    pace.observe(0, 2048, launched(0, 2048))
    pace.observe(4, 0, launched(4, 0))
    pace.observe(4, 512, 5.0)  # it compiled kernels
    for _ in range(100):
        piece = pace.prompt_tokens(4)
        pace.observe(4, piece, launched(4, piece))
    assert pace.prompt_tokens(4) > 300


def test_what_was_cheap_beside_few_decodes_is_not_tried_beside_many() -> None:
    pace = Pace.on("cuda", 2048)
    pace.observe(0, 2048, cost(0, 2048))
    for decodes, steps in ((1, 40), (32, 200)):
        pieces = []
        for _ in range(steps):
            pace.observe(decodes, 0, cost(decodes, 0))
            pieces.append(pace.prompt_tokens(decodes))
            pace.observe(decodes, pieces[-1], cost(decodes, pieces[-1]))
    usual = sorted(pieces)[len(pieces) // 2]
    assert max(pieces[20:]) <= 2 * usual
