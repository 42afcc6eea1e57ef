"""A decode step reads the device once: every other operation could run ahead of it."""

from __future__ import annotations

from collections import abc
from typing import Any

import numpy as np
import pytest
import torch

from serve_app.engine.sampling.logprobs import RawLogprobs, entries
from serve_app.engine.sampling.sampled import Sampled
from serve_app.engine.sampling.sampler import Sampler
from serve_app.engine.sampling.topk import largest_by_keys
from serve_app.engine.sequence import Sequence
from serve_app.types import SamplingParams
from tests.support.pretend_device import PretendDevice

V, PADDED = 1_000, 1_024

ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "top_k": {"temperature": 0.7, "top_k": 20},
    "large top_k": {"top_k": 300, "top_p": 0.9},
    "top_p": {"temperature": 1.5, "top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "all filters": {"top_k": 30, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.9},
    "typical_p": {"typical_p": 0.6},
    "decaying top_p": {"top_p": 0.9, "top_p_decay": 0.8, "top_p_min": 0.3},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "bias": {"temperature": 0.0, "logit_bias": ((5, 3.0), (7, -100.0))},
    "masks": {"bad_words": ((3,), (4, 5)), "allowed_token_ids": tuple(range(2, 400)), "no_repeat_ngram": 2},
    "min_tokens": {"min_tokens": 100, "stop_token_ids": (8,)},
    "watermark": {"watermark": True},
    "nothing left": {"allowed_token_ids": (9,), "bad_words": ((9,),)},
}


class HalfMask:
    """A grammar that allows the lower half of the vocabulary."""

    error = None

    def mask(self, output: abc.Sequence[int]) -> np.ndarray:
        bits = np.full(-(-V // 32), -1, dtype=np.int32)
        bits[V // 64 :] = 0
        return bits


def batch() -> list[Sequence]:
    """A sequence of each kind, with and without log-probabilities, some under a grammar."""
    made = []
    for i, (name, asked) in enumerate([*ASKED.items()] * 2):
        tokens = [(7 * i + 3 * j * j) % V for j in range(40)]
        sequence = Sequence(name, i, 10, tokens, SamplingParams(**asked), seed=i)
        if i % 3 == 0:
            sequence.num_logprobs = i % 5
        if i % 4 == 1:
            sequence.constraint = HalfMask()  # type: ignore[assignment]
        if i % 5 == 2:
            sequence.bias = torch.linspace(-1, 1, V).repeat(2)[:PADDED].contiguous()
        made.append(sequence)
    return made


def logits_of(rows: int) -> torch.Tensor:
    """Rows with many ties, one of them with NaN and one with +inf."""
    x = torch.randn(rows, PADDED, generator=torch.Generator().manual_seed(1)) * 3
    x = (x * 8).round() / 8
    x[1, 77], x[4, 5] = torch.nan, torch.inf
    return x


def on_cpu(sequences: list[Sequence]) -> list[Sampled]:
    return Sampler(V, frozenset({2})).sample(logits_of(len(sequences)), sequences)


def test_a_step_of_all_kinds_of_rows_reads_the_device_once_and_gives_what_a_cpu_gives() -> None:
    sequences = batch()
    with torch.inference_mode(), PretendDevice() as device:
        choice = Sampler(V, frozenset({2})).choose(device.put(logits_of(len(sequences))), sequences)
        assert len(device.waits) == 1
        outcomes = choice.read()
        assert len(device.waits) == 1
    assert outcomes == on_cpu(batch())
    assert {outcome.error is None for outcome in outcomes} == {True, False}
    assert sum(outcome.logprobs is not None for outcome in outcomes) > 5


@pytest.mark.parametrize("name", ["greedy", "plain", "top_p"])
def test_a_step_of_one_kind_reads_the_device_once(name: str) -> None:
    sequences = [sequence for sequence in batch() if sequence.request_id == name]
    for sequence in sequences:
        sequence.num_logprobs = sequence.constraint = sequence.bias = None
    with torch.inference_mode(), PretendDevice() as device:
        rows = torch.randn(len(sequences), PADDED, generator=torch.Generator().manual_seed(2))
        outcomes = Sampler(V, frozenset({2})).sample(device.put(rows.clone()), sequences)
        assert len(device.waits) == 1
    assert outcomes == Sampler(V, frozenset({2})).sample(rows.clone(), sequences)


def test_the_chosen_tokens_stay_on_the_device_for_the_next_step() -> None:
    sequences = batch()
    with torch.inference_mode(), PretendDevice() as device:
        choice = Sampler(V, frozenset({2})).choose(device.put(logits_of(len(sequences))), sequences)
        fed = choice.tokens.to("cpu").tolist()
        told = [outcome.token_id for outcome in choice.read()]
    assert all(token in (own, -1) for token, own in zip(told, fed, strict=True))
    assert all(0 <= token < PADDED for token in fed)  # a row with an error has a token that can be looked up


@pytest.mark.parametrize("levels", [2, 40, 10**6])
def test_selecting_by_keys_is_the_order_of_the_sort(levels: int) -> None:
    generator = torch.Generator().manual_seed(levels)
    for width, k in ((999, 1), (999, 30), (5_000, 64), (5_000, 1_000)):
        x = torch.randint(-levels, levels, (6, width), generator=generator).float() / levels
        x[1], x[2, ::2], x[3] = -torch.inf, -torch.inf, x[3].abs() * -0.0
        values, ids = largest_by_keys(x, k)
        wanted, order = torch.sort(x, dim=-1, descending=True, stable=True)
        assert torch.equal(values, wanted[:, :k])
        assert torch.equal(ids, order[:, :k])


def test_alternatives_of_a_device_are_those_of_a_cpu() -> None:
    x = (torch.randn(4, 3_000, generator=torch.Generator().manual_seed(7)) * 4).round() / 4
    wanted = RawLogprobs(x, [3, 0, 20, 5]).at([1, 2, 3, 4])
    with PretendDevice() as device:
        raw = RawLogprobs(device.put(x), [3, 0, 20, 5])
        told = [part.to("cpu") for part in raw.of(device.put(torch.tensor([1, 2, 3, 4])))]
        found = entries([3, 0, 20, 5], [1, 2, 3, 4], told)
    assert found == wanted
