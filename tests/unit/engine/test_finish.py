"""Why a sequence ends with a token: end tokens, stop sequences, lengths, and their minimum."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from serve_app.engine.finish import EndRule
from serve_app.engine.sampling.sampler import Sampler
from serve_app.engine.sequence import Sequence
from serve_app.errors import InvalidField
from serve_app.limits import MAX_STOP_SEQUENCE_TOKENS, MAX_STOP_SEQUENCES
from serve_app.types import Beam, FinishReason, SamplingParams
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
