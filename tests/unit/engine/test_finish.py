"""Why a sequence ends with a token: end tokens, stop sequences, lengths, and their minimum."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from serve_app.engine.finish import EndRule, ends_in_loop
from serve_app.engine.sampling.sampler import Sampler
from serve_app.engine.sequence import Sequence
from serve_app.errors import InvalidField
from serve_app.limits import MAX_LOOP_COUNT, MAX_LOOP_TOKENS, MAX_STOP_SEQUENCE_TOKENS, MAX_STOP_SEQUENCES
from serve_app.types import Beam, FinishReason, LoopRule, SamplingParams
from tests.support.fakes import greedy_tokens
from tests.unit.engine.test_engine import Bench

PROMPT = (1, 2, 3)


def line(prompt: list[int], output: list[int], **sampling: object) -> Sequence:
    return Sequence("r", 0, len(prompt), prompt + output, SamplingParams(**sampling), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("output", "token", "ends"),
    [
        ([], 9, True),  # a sequence of one
        ([8, 4], 5, True),
        ([4], 5, True),
        ([], 5, False),  # the prompt ends with 4, but does not count
        ([4, 5], 6, False),
        ([5], 4, False),
    ],
)
def test_stop_sequences_look_at_the_end_of_the_output(output: list[int], token: int, ends: bool) -> None:
    sequence = line([7, 4], output, stop_sequences=((4, 5), (9,)))
    reason = EndRule(frozenset()).reason(sequence, token, room=100)
    assert reason is (FinishReason.STOP if ends else None)


@pytest.mark.parametrize(
    ("sampling", "token", "reason"),
    [
        ({}, 2, FinishReason.EOS),
        ({"ignore_eos": True}, 2, None),  # end_id = -1
        ({"ignore_eos": True, "stop_token_ids": (5,)}, 2, None),  # end_id = 5
        ({"ignore_eos": True, "stop_token_ids": (5,)}, 5, FinishReason.STOP),
        ({"ignore_eos": True, "stop_token_ids": (2,)}, 2, FinishReason.STOP),
    ],
)
def test_end_ids(sampling: dict[str, object], token: int, reason: FinishReason | None) -> None:
    assert EndRule(frozenset({2})).reason(line([1], [], **sampling), token, room=9) is reason


def test_an_output_ends_with_its_stop_sequence_and_keeps_it() -> None:
    expected = greedy_tokens(PROMPT, 6)
    bench = Bench()
    bench.add("a", PROMPT, stop_sequences=(tuple(expected[2:4]),))
    bench.drain()
    assert bench.tokens["a", 0] == expected[:4]
    assert bench.ends["a", 0].finish is FinishReason.STOP
    assert bench.ends["a", 0].by_sequence


def test_a_stop_token_is_no_stop_sequence() -> None:
    expected = greedy_tokens(PROMPT, 6)
    bench = Bench()
    bench.add("a", PROMPT, stop_token_ids=(expected[3],))
    bench.drain()
    assert not bench.ends["a", 0].by_sequence


def test_beams_end_with_stop_sequences() -> None:
    bench = Bench()
    bench.add("free", PROMPT, beam=Beam(width=2), max_tokens=8)
    bench.drain()
    free = bench.tokens["free", 0]
    bench.add("held", PROMPT, beam=Beam(width=2), max_tokens=8, stop_sequences=(tuple(free[1:3]),))
    bench.drain()
    held = bench.tokens["held", 0]
    assert tuple(free[1:3]) not in list(pairwise(held[:-1]))
    if bench.ends["held", 0].finish is FinishReason.STOP:
        assert held[-2:] == free[1:3]


@pytest.mark.parametrize(
    ("output", "token", "rule", "ends"),
    [
        ([5, 5], 5, LoopRule(most=1, count=3), True),
        ([5], 5, LoopRule(most=1, count=3), False),  # the prompt's last token is 5, and does not count
        ([5, 6, 5, 6, 5], 6, LoopRule(most=2, count=3), True),
        ([5, 6, 5, 6, 5], 6, LoopRule(most=1, count=3), False),
        ([5, 6, 5, 6, 5], 7, LoopRule(most=2, count=3), False),
        ([9, 5, 6, 6, 5, 6], 6, LoopRule(most=3, count=2), True),
        ([5, 5, 5], 5, LoopRule(least=2, most=2, count=2), True),  # two of two
        ([6, 5, 5], 5, LoopRule(least=2, most=2, count=2), False),
        ([5, 5, 5, 5], 5, LoopRule(least=3, most=9, count=2), False),
    ],
)
def test_an_output_that_repeats_itself_ends(
    output: list[int], token: int, rule: LoopRule, ends: bool
) -> None:
    reason = EndRule(frozenset()).reason(line([7, 5], output, loop=rule), token, room=100)
    assert reason is (FinishReason.REPETITION if ends else None)
    later = line([7, 5], output, loop=rule, min_tokens=len(output) + 2)
    assert EndRule(frozenset()).reason(later, token, room=100) is None


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=24),
    st.integers(0, 8),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(2, 5),
)
def test_loops_are_those_that_a_reader_sees(
    ids: list[int], prompt_len: int, least: int, more: int, count: int
) -> None:
    prompt_len = min(prompt_len, len(ids) - 1)
    output, rule = ids[prompt_len:], LoopRule(least=least, most=least + more, count=count)
    seen = any(
        len(output) >= size * count and output[-size * count :] == output[-size:] * count
        for size in range(rule.least, rule.most + 1)
    )
    assert ends_in_loop(ids[:-1], ids[-1], len(output), rule) is seen


@pytest.mark.parametrize("drafted", [0, 4])
def test_a_loop_ends_a_request_at_its_token(drafted: int) -> None:
    """Also where a draft brings several tokens at once."""
    bench = Bench(settings={"ngram_draft": drafted})
    rule = LoopRule(most=3, count=5)
    bench.add("a", PROMPT, allowed_token_ids=(9,), max_tokens=30, loop=rule)
    bench.add("b", PROMPT, allowed_token_ids=(9,), max_tokens=30, loop=rule, min_tokens=8)
    bench.add("c", PROMPT, max_tokens=30, loop=LoopRule(most=3, count=100))
    bench.drain()
    assert {name: len(bench.tokens[name, 0]) for name in "abc"} == {"a": 5, "b": 8, "c": 30}
    assert [bench.ends[name, 0].finish for name in "abc"] == [
        FinishReason.REPETITION,
        FinishReason.REPETITION,
        FinishReason.LENGTH,
    ]


@pytest.mark.parametrize(
    "rule",
    [
        LoopRule(most=0, count=2),
        LoopRule(most=MAX_LOOP_TOKENS + 1, count=2),
        LoopRule(least=3, most=2, count=2),
        LoopRule(least=0, most=2, count=2),
        LoopRule(most=2, count=1),
        LoopRule(most=2, count=MAX_LOOP_COUNT + 1),
    ],
)
def test_bad_rules_of_loops_are_refused(rule: LoopRule) -> None:
    with pytest.raises(InvalidField, match="repetition_detection"):
        Bench().add("a", PROMPT, loop=rule)


@pytest.mark.parametrize("minimum", [0, 3])
def test_nothing_that_ends_comes_before_min_tokens(minimum: int) -> None:
    ends: dict[str, object] = {"stop_sequences": ((4, 5), (9,)), "stop_token_ids": (3,)}
    logits = torch.zeros(1, 12)
    logits[0, [2, 3, 5, 9]] = torch.tensor([8.0, 7.0, 6.0, 5.0])
    logits[0, 1] = 1.0
    sequence = line([7], [6, 4], temperature=0.0, min_tokens=minimum, **ends)
    (sampled,) = Sampler(12, frozenset({2})).sample(logits.clone(), [sequence])
    assert sampled.token_id == (1 if minimum else 2)
    # An end-of-sequence token that ends nothing is a token like any other.
    ignoring = line([7], [6, 4], temperature=0.0, min_tokens=minimum, ignore_eos=True, **ends)
    (sampled,) = Sampler(12, frozenset({2})).sample(logits.clone(), [ignoring])
    assert sampled.token_id == 2


@pytest.mark.parametrize(
    "stop_sequences",
    [((),), ((99,),), ((-1,),), ((1,) * (MAX_STOP_SEQUENCE_TOKENS + 1),), ((1,),) * (MAX_STOP_SEQUENCES + 1)],
    ids=["empty", "too large an id", "negative", "too long", "too many"],
)
def test_bad_stop_sequences_are_refused(stop_sequences: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(InvalidField, match="stop_sequences"):
        Bench().add("a", PROMPT, stop_sequences=stop_sequences)
