"""Packed and by lengths: every way of encoding gives what transformers gives for one input alone."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import PreTrainedModel

from serve_app.engine.embedding.encoder import (
    EqualLengthEncoder,
    PackedEncoder,
    make_encoder,
    packed,
    packed_attention,
)
from serve_app.engine.model.forward import UnsupportedModel
from serve_app.models.embedder import first_position
from tests.support.tiny_encoders import DECODERS, ENCODERS, WINDOW, tiny

BY_LENGTHS = {"mpnet"}  # which adds biases to its scores


def inputs(module: PreTrainedModel, count: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    # No padding among them: transformers would take it for padding.
    usable = [i for i in range(module.config.vocab_size) if i != module.config.pad_token_id]
    return [[rng.choice(usable) for _ in range(rng.choice((1, 2, 7, 7, 20, WINDOW)))] for _ in range(count)]


def alone(module: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return module(input_ids=torch.tensor([ids])).last_hidden_state[0]


@pytest.mark.parametrize("kind", [*ENCODERS, *DECODERS])
def test_every_sequence_of_a_batch_is_as_transformers_has_it_alone(kind: str) -> None:
    reference, module = tiny(kind), tiny(kind)
    notes: list[str] = []
    encoder = make_encoder(
        module, first_position=first_position(module), window=WINDOW, progress=notes.append
    )
    assert isinstance(encoder, EqualLengthEncoder if kind in BY_LENGTHS else PackedEncoder), notes
    sequences = inputs(module, 24, seed=3)
    for ids, found in zip(sequences, encoder.hidden(sequences), strict=True):
        torch.testing.assert_close(found, alone(reference, ids), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["bert", "qwen3", "mpnet"])
def test_a_sequence_does_not_see_its_neighbours(kind: str) -> None:
    module = tiny(kind)
    encoder = make_encoder(
        module, first_position=first_position(module), window=WINDOW, progress=lambda _: None
    )
    [first, *others] = inputs(module, 6, seed=5)
    [lone] = encoder.hidden([first])
    for seed in range(4):
        mixed = [first, *random.Random(seed).sample(others, len(others))]
        torch.testing.assert_close(encoder.hidden(mixed)[0], lone, rtol=1e-5, atol=1e-5)


def test_wrong_positions_are_noticed_at_load() -> None:
    notes: list[str] = []
    encoder = make_encoder(tiny("roberta"), first_position=0, window=WINDOW, progress=notes.append)
    assert isinstance(encoder, EqualLengthEncoder)
    assert "other vectors" in notes[0]


def test_a_module_that_needs_more_than_ids_is_refused() -> None:
    module = tiny("bert")
    module.forward = lambda **_: (_ for _ in ()).throw(ValueError("pixels are needed"))
    with pytest.raises(UnsupportedModel, match="pixels"):
        make_encoder(module, first_position=0, window=WINDOW, progress=lambda _: None)


def test_what_the_packed_attention_does_not_know_is_refused() -> None:
    heads = torch.zeros(1, 2, 3, 4)
    layer = torch.nn.Module()
    with packed([3]):
        with pytest.raises(UnsupportedModel, match="mask"):
            packed_attention(layer, heads, heads, heads, torch.zeros(1, 1, 3, 3))
        with pytest.raises(UnsupportedModel, match="position_bias"):
            packed_attention(layer, heads, heads, heads, None, position_bias=torch.zeros(3))
