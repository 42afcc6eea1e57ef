"""demo-embed means something on its domain, as its card says, and its recipe keeps what is held out."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import BertModel

from recipes.demo_chat.tokenizer import load
from recipes.demo_chat.words import Pool
from recipes.demo_embed.evaluate import KINDS, measure, triplets
from recipes.demo_embed.meanings import INTENTS, Meaning, draw, siblings, ways_of
from recipes.demo_embed.train import FOLDER, meanings


@pytest.fixture(scope="module")
def model() -> BertModel:
    torch.set_num_threads(1)
    return BertModel.from_pretrained(FOLDER, add_pooling_layer=False).eval()


def test_held_out_triplets_are_ranked_as_well_as_the_card_says(model: BertModel) -> None:
    card = (FOLDER / "README.md").read_text("utf-8")
    stated = {kind: float(re.findall(rf"{kind} \| 1000 \| ([\d.]+)%", card)[0]) for kind in KINDS}
    scores = measure(model, load(), triplets(7, 900))
    assert set(scores) == set(KINDS)
    for kind, (right, count) in scores.items():
        assert count == 300
        assert 100 * right / count > max(90, stated[kind] - 4), kind  # four points: 300 are a sample


def test_a_random_model_does_not_rank_them(model: BertModel) -> None:
    torch.manual_seed(0)
    scores = measure(BertModel(model.config, add_pooling_layer=False).eval(), load(), triplets(7, 300))
    assert sum(right for right, _ in scores.values()) < 0.85 * 300


def test_training_sees_no_held_out_way_of_saying_and_no_held_out_content() -> None:
    for name, intent in INTENTS.items():
        assert len(set(intent.ways) | set(intent.held)) == len(intent.ways) + len(intent.held), name
        assert len(intent.ways) >= 2, name
        assert len(intent.held) >= 2, name
    trained = {meaning for meaning in meanings(Pool("embedding test"), 3000) if meaning.intent == "story"}
    held = {draw(Pool(f"held {seed}", held=True), "story") for seed in range(200)}
    assert trained
    assert not trained & held


def test_siblings_share_the_content_and_nothing_else() -> None:
    weather = Meaning("weather", (("x", "Oslo"),))
    assert {each.intent for each in siblings(weather)} == {"country", "time"}
    assert {each.content for each in siblings(weather)} == {weather.content}
    assert all("Oslo" in weather.say(way) for held in (True, False) for way in ways_of(weather, held=held))
