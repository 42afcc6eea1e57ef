"""The index of repeated token runs, against transformers' processor that reads everything again."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor

from serve_app.engine.sampling.ngrams import NgramIndex

V = 12


def expected(size: int, tokens: list[int]) -> set[int]:
    scores = NoRepeatNGramLogitsProcessor(size)(torch.tensor([tokens]), torch.zeros(1, V))
    return set((scores[0] == -torch.inf).nonzero().flatten().tolist())


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_the_same_tokens_as_in_transformers_at_every_step_of_growth_and_truncation(size: int) -> None:
    rng = random.Random(size)
    for _ in range(20):
        index, tokens = NgramIndex(size), [rng.randrange(V) for _ in range(rng.randint(1, 30))]
        for _ in range(40):
            found = index.following(tokens).tolist()
            assert len(found) == len(set(found))
            assert set(found) == expected(size, tokens)
            if rng.random() < 0.1:
                del tokens[rng.randint(1, len(tokens)) :]
            tokens += [rng.randrange(rng.choice([2, V])) for _ in range(rng.choice([1, 1, 1, 3]))]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_forks_grow_apart_whoever_is_asked_first(size: int) -> None:
    rng = random.Random(size)
    family = [(NgramIndex(size), [rng.randrange(3) for _ in range(15)])]
    family[0][0].following(family[0][1])
    for _ in range(60):
        index, tokens = rng.choice(family)
        if len(family) < 8 and rng.random() < 0.3:
            family.append((index.copy(), list(tokens)))
        tokens.append(rng.randrange(4))
        for each, text in rng.sample(family, len(family)):
            assert set(each.following(text).tolist()) == expected(size, text)
