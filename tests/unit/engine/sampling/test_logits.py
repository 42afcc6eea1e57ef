"""Bias, penalties and masks: each against transformers' processor or the formula, and their order."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

from serve_app.engine.sampling.logits import Edits, TokenCounts, apply_edits
from serve_app.engine.sequence import Sequence
from serve_app.types import SamplingParams

torch.set_num_threads(1)
V = 97
EOS = frozenset({1})
INF = float("inf")


def line(prompt: list[int], output: list[int], **sampling: Any) -> Sequence:
    return Sequence("r", 0, len(prompt), prompt + output, SamplingParams(**sampling), seed=0)


def edit(logits: torch.Tensor, *lines: Sequence) -> torch.Tensor:
    out = logits.clone()
    apply_edits(out, range(len(lines)), [Edits(s, V, EOS) for s in lines], lines)
    return out


def random_logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 4


PROMPT, OUTPUT = [3, 5, 5, 8], [5, 9, 9, 9, 20]


@pytest.mark.parametrize("penalty", [0.5, 1.3, 100.0])
def test_repetition_penalty_equals_transformers(penalty: float) -> None:
    x = random_logits()
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([PROMPT + OUTPUT]), x.clone())
    assert torch.equal(edit(x, line(PROMPT, OUTPUT, repetition_penalty=penalty)), expected)


def test_a_repetition_penalty_of_the_output_leaves_the_prompt_alone() -> None:
    x = random_logits()
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([OUTPUT]), x.clone())
    s = line(PROMPT, OUTPUT, repetition_penalty=1.3, repetition_sees_prompt=False)
    assert torch.equal(edit(x, s), expected)
    assert not torch.equal(edit(x, line(PROMPT, OUTPUT, repetition_penalty=1.3)), expected)


@pytest.mark.parametrize("penalize_prompt", [False, True])
def test_presence_and_frequency_subtract_for_the_tokens_they_count(penalize_prompt: bool) -> None:
    x = random_logits()
    expected = x.clone()
    for token_id, count in Counter(PROMPT + OUTPUT if penalize_prompt else OUTPUT).items():
        expected[0, token_id] -= 0.7 + 0.3 * count
    s = line(PROMPT, OUTPUT, presence_penalty=0.7, frequency_penalty=0.3, penalize_prompt=penalize_prompt)
    torch.testing.assert_close(edit(x, s), expected)


def test_bias_adds_and_ignores_ids_outside_the_vocabulary() -> None:
    x = random_logits()
    expected = x.clone()
    expected[0, 4] += 2.5
    expected[0, 6] -= 100.0
    s = line([2], [], logit_bias=((4, 2.5), (6, -100.0), (V, 3.0), (-1, 3.0)))
    assert torch.equal(edit(x, s), expected)


@pytest.mark.parametrize("tail", [[7, 8], [8], [6, 7, 8], [9], [7, 8, 9]])
def test_bad_words_equal_transformers(tail: list[int]) -> None:
    words = [[4], [8, 10], [7, 8, 11], [6, 7, 8, 12], [5, 7, 8, 13], [9, 9, 14]]
    x = random_logits()
    expected = NoBadWordsLogitsProcessor(words)(torch.tensor([[3, 2, *tail]]), x.clone())
    assert torch.equal(edit(x, line([3, 2], tail, bad_words=tuple(map(tuple, words)))), expected)


def test_a_bad_word_longer_than_the_text_bans_nothing() -> None:
    x = random_logits()
    assert torch.equal(edit(x, line([8], [], bad_words=((6, 7, 8, 12), (8, 8, 12)))), x)


def test_allowed_token_ids_leave_only_themselves() -> None:
    x = random_logits()
    out = edit(x, line([2], [], allowed_token_ids=(5, 90, V + 3)))
    assert torch.isfinite(out[0]).nonzero().flatten().tolist() == [5, 90]
    assert out[0, 90] == x[0, 90]


def test_min_tokens_masks_end_tokens_until_reached() -> None:
    x = random_logits()
    for generated in range(4):
        s = line([2], [9] * generated, min_tokens=2, stop_token_ids=(30, 31))
        masked = (edit(x, s)[0] == -INF).nonzero().flatten().tolist()
        assert masked == ([1, 30, 31] if generated < 2 else [])
        assert Edits(s, V, EOS).active(s) == (generated < 2)


def test_ignore_eos_masks_nothing() -> None:
    s = line([2], [3], ignore_eos=True)
    assert not Edits(s, V, EOS).active(s)
    assert torch.equal(edit(random_logits(), s), random_logits())


def test_the_order_is_bias_repetition_presence_frequency_mask() -> None:
    x = torch.zeros(1, V)
    x[0, 9], x[0, 5] = -1.0, 1.0
    s = line(
        PROMPT,
        OUTPUT,
        logit_bias=((9, 3.0), (5, -3.0), (20, 50.0)),
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        bad_words=((20,),),
    )
    out = edit(x, s)[0]
    assert out[9] == (-1.0 + 3.0) / 2.0 - 0.5 - 3 * 0.25
    assert out[5] == (1.0 - 3.0) * 2.0 - 0.5 - 0.25
    assert out[20] == -INF


def test_rows_that_ask_for_nothing_keep_their_logits_beside_rows_that_do() -> None:
    x = random_logits(3)
    lines = [line(PROMPT, OUTPUT), line(PROMPT, OUTPUT, repetition_penalty=1.5, bad_words=((4,),))]
    out = x.clone()
    apply_edits(out, [1], [Edits(lines[1], V, EOS)], lines[1:])
    assert torch.equal(out[[0, 2]], x[[0, 2]])
    assert not torch.equal(out[1], x[1])


@given(
    st.sampled_from([1e-300, 1e-30, 1.0, 100.0, 1e30]),
    st.sampled_from([-1e300, -2.0, 0.0, 1e300]),
    st.sampled_from([-1e300, 0.0, 2.0, 1e300]),
    st.sampled_from([-1e300, 0.0, 1e300]),
    st.lists(st.sampled_from([0.0, -INF, 3e38, -3e38, 1e-45, 5.0]), min_size=V, max_size=V),
)
def test_no_penalty_makes_a_finite_logit_infinite_or_nan(
    repetition: float, presence: float, frequency: float, bias: float, raw: list[float]
) -> None:
    x = torch.tensor([raw])
    s = line(
        PROMPT,
        OUTPUT,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=((5, bias), (6, bias)),
    )
    assert torch.equal(torch.isfinite(edit(x, s)), torch.isfinite(x))
    assert not edit(x, s).isnan().any()


@given(st.lists(st.one_of(st.integers(0, V + 5), st.just(-1)), max_size=120), st.booleans())
def test_history_follows_growth_and_truncation(moves: list[int], whole: bool) -> None:
    params = SamplingParams(frequency_penalty=1.0, penalize_prompt=whole)
    history = TokenCounts(params, len(PROMPT), V)
    tokens = list(PROMPT)
    for move in moves:
        if move >= 0:
            tokens.append(move)
        else:
            del tokens[max(len(PROMPT), len(tokens) - 2) :]
        if move % 3 == 0:
            continue  # several tokens between two looks
        ids, counts = history.update(tokens)
        expected = Counter(t for t in (tokens if whole else tokens[len(PROMPT) :]) if t < V)
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == expected


def test_history_of_the_repetition_penalty_sees_prompt_tokens_with_count_zero() -> None:
    ids, counts = TokenCounts(SamplingParams(repetition_penalty=1.1), 2, V).update([4, 5, 5])
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {4: 0, 5: 1}
