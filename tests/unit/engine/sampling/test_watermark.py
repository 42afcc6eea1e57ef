"""The green list: its definition, its share, and that the detector finds what the sampler marks."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from serve_app.config import WATERMARK_KEY
from serve_app.engine.sampling.logits import Edits, apply_edits
from serve_app.engine.sampling.sampler import Sampler
from serve_app.engine.sampling.topk import NEVER
from serve_app.engine.sampling.watermark import DELTA, detect, green
from serve_app.engine.sequence import Sequence
from serve_app.types import SamplingParams

V = 500
MASK = 2**64 - 1


def line(tokens: list[int], **sampling: object) -> Sequence:
    params = SamplingParams(**{"watermark": True, **sampling})  # type: ignore[arg-type]
    return Sequence("r", 0, 1, tokens, params, 7)


def is_green(previous: int, token: int, key: int) -> bool:
    """The definition, one token at a time, in Python's integers."""
    x = (previous * key % 2**64 + (token // 8 + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return (x ^ (x >> 31)).to_bytes(8, "little")[token % 8] < 128


@pytest.mark.parametrize("key", [1, WATERMARK_KEY, 2**64 - 1])
def test_green_is_what_its_definition_says(key: int) -> None:
    previous = [0, 1, 7, 499, 150_000]
    mask = green(previous, 150_003, key)
    assert mask.shape == (5, 150_003)
    for row, before in enumerate(previous):
        for token in (0, 1, 7, 8, 9, 63, 64, 149_999, 150_002):
            assert mask[row, token] == is_green(before, token, key)


def test_half_of_the_vocabulary_is_green_and_another_half_after_another_token() -> None:
    mask = green(range(200), 4_000)
    assert mask.mean() == pytest.approx(0.5, abs=0.002)
    assert np.abs(mask.mean(1) - 0.5).max() < 0.05
    agreement = (mask[:-1] == mask[1:]).mean(1)
    assert np.abs(agreement - 0.5).max() < 0.05


def test_the_mark_is_added_last_and_gives_back_nothing_that_is_masked() -> None:
    logits = torch.zeros(2, V)
    lines = [line([3, 9], bad_words=((4,), (5,))), line([3, 9], watermark=False, bad_words=((4,),))]
    apply_edits(logits, [0, 1], [Edits(each, V, ()) for each in lines], lines)
    want = torch.from_numpy(green([9], V)[0]) * DELTA
    want[[4, 5]] = NEVER
    assert torch.equal(logits[0], want)
    assert int((logits[1] != 0).sum()) == 1


def generate(count: int, seed: int, **sampling: object) -> list[int]:
    sampler = Sampler(V, frozenset())
    text = line([1], seed=seed, **sampling)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        (sampled,) = sampler.sample(torch.randn(1, V, generator=generator), [text])
        text.token_ids.append(sampled.token_id)
    return text.token_ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_marked_text_is_found_and_other_text_is_not(temperature: float) -> None:
    marked = detect(generate(200, 5, temperature=temperature))
    assert marked.z_score > 8
    assert marked.green_fraction > 0.8
    assert 190 <= marked.num_tokens <= 200
    plain = generate(200, 5, temperature=temperature, watermark=False)
    assert abs(detect(plain).z_score) < 4
    assert abs(detect(generate(200, 5, temperature=temperature), key=12_345).z_score) < 4


def test_unmarked_texts_score_like_a_standard_normal() -> None:
    rng = random.Random(3)
    scores = [detect([rng.randrange(30_000) for _ in range(400)]).z_score for _ in range(300)]
    assert np.mean(scores) == pytest.approx(0.0, abs=0.25)
    assert np.std(scores) == pytest.approx(1.0, abs=0.15)


def test_repetition_is_no_evidence() -> None:
    token = int(green([7], V)[0].argmax())
    assert detect([7, token] * 500).num_tokens == 2
    assert detect([]) == detect([7])
    assert detect([7]).z_score == 0.0
