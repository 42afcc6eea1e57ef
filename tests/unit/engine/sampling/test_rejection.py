"""Rejection sampling against a draft with probabilities."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from serve_app.engine.request.client_draft import ClientDraft
from serve_app.engine.sampling.filters import FilterParams, RowParams, distribution
from serve_app.engine.sampling.sampler import Sampler
from serve_app.engine.sequence import Sequence
from serve_app.types import SamplingParams


def drawn(rows: torch.Tensor, draft_rows: torch.Tensor, draws: int, **sampling: object) -> list[list[int]]:
    """What `draws` sequences sample from rows [k, V], each with a draft of its own from `draft_rows`."""
    probs = torch.softmax(draft_rows.double(), -1)
    generator = torch.Generator().manual_seed(11)
    drafts = torch.multinomial(probs, draws, replacement=True, generator=generator).T.tolist()
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    sequences = [
        Sequence("r", 0, 1, [0], params, seed=seed * 7919, client_draft=ClientDraft(tuple(tokens), probs))
        for seed, tokens in enumerate(drafts)
    ]
    sampler = Sampler(rows.shape[1], frozenset())
    for row in rows:
        for sequence, sampled in zip(sequences, sampler.sample(row.repeat(draws, 1), sequences), strict=True):
            sequence.token_ids.append(sampled.token_id)
    return [sequence.output_ids for sequence in sequences]


@pytest.mark.parametrize("draws", [2_000, pytest.param(20_000, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 4, "logit_bias": ((2, 1.0),)}]
)
def test_rejection_sampling_preserves_the_distribution(draws: int, sampling: dict[str, object]) -> None:
    """Chi-square, at one in a million, of the first token and of the second."""
    generator = torch.Generator().manual_seed(3)
    rows, draft_rows = (torch.randn(2, 8, generator=generator) * 1.5 for _ in range(2))
    counts = [Counter(column) for column in zip(*drawn(rows, draft_rows, draws, **sampling), strict=True)]
    for row, count in zip(rows, counts, strict=True):
        biased = row.clone()
        for token, value in sampling.get("logit_bias", ()):  # type: ignore[attr-defined]
            biased[token] += value
        params = RowParams(
            temperature=float(sampling.get("temperature", 1.0)),  # type: ignore[arg-type]
            top_k=int(sampling.get("top_k", 8)),  # type: ignore[call-overload]
            top_p=float(sampling.get("top_p", 1.0)),  # type: ignore[arg-type]
            min_p=0.0,
            typical_p=1.0,
            noise=0.0,
        )
        p = distribution(biased[None], FilterParams.of([params], torch.tensor([params]).double()))[0]
        possible = [i for i in range(8) if p[i] > 0]
        assert set(count) <= set(possible)
        statistic = sum((count[i] - draws * float(p[i])) ** 2 / (draws * float(p[i])) for i in possible)
        assert statistic < 40.5  # 7 degrees of freedom


def test_a_draft_from_the_target_itself_is_always_accepted() -> None:
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(5))
    probs = torch.softmax(rows.double(), -1)
    for seed in range(200):
        tokens = tuple(
            torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed)).flatten().tolist()
        )
        draft = ClientDraft(tokens, probs * (1 - 1e-9))
        sequence = Sequence("r", 0, 1, [0], SamplingParams(), seed=seed, client_draft=draft)
        for row in rows:
            sequence.token_ids.append(
                Sampler(8, frozenset()).sample(row[None].clone(), [sequence])[0].token_id
            )
        assert tuple(sequence.output_ids) == tokens


@pytest.mark.parametrize(("threshold", "accepted"), [(0.0, True), (1.0, False)])
def test_a_threshold_replaces_the_draw(threshold: float, accepted: bool) -> None:
    target, draft = torch.zeros(1, 4), torch.tensor([[0.0, 0.0, 5.0, 0.0]])
    for seed in range(50):
        given = ClientDraft((2,), torch.softmax(draft.double(), -1), threshold)
        sequence = Sequence("r", 0, 1, [0], SamplingParams(), seed=seed, client_draft=given)
        assert (Sampler(4, frozenset()).sample(target.clone(), [sequence])[0].token_id == 2) is accepted
