"""Measures demo-embed on what training never saw: does the same meaning lie nearer than another?

A triplet is a sentence, another way of saying it, and something else: with other intent and
content, or with one of the two the same, which is harder. All three come from the held-out
pool, the first in a way of saying that is held out too.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import BertModel, PreTrainedTokenizerBase

from recipes.demo_chat.tokenizer import load
from recipes.demo_chat.words import Pool
from recipes.demo_embed.meanings import Meaning, draw, siblings, ways_of
from recipes.demo_embed.train import FOLDER, embed

OTHER = "another intent, other content"
OTHER_CONTENT = "the same intent, other content"
OTHER_INTENT = "another intent, the same content"
KINDS = (OTHER, OTHER_CONTENT, OTHER_INTENT)


@dataclass(frozen=True)
class Triplet:
    """Three sentences, and how the last differs from the first two."""

    kind: str
    anchor: str
    like: str
    unlike: str


def triplets(seed: int, count: int) -> list[Triplet]:
    """`count` held-out triplets, the kinds in turn."""
    pool = Pool(f"triplets {seed}", held=True)
    return [_triplet(pool, KINDS[number % len(KINDS)]) for number in range(count)]


def _triplet(pool: Pool, kind: str) -> Triplet:
    meaning, other = _pair(pool, kind)
    anchor = pool.pick(ways_of(meaning, held=True))
    every = ways_of(meaning, held=True) + ways_of(meaning, held=False)
    like = pool.pick([way for way in every if way != anchor])
    unlike = pool.pick(ways_of(other, held=True) + ways_of(other, held=False))
    return Triplet(kind, meaning.say(anchor), meaning.say(like), other.say(unlike))


def _pair(pool: Pool, kind: str) -> tuple[Meaning, Meaning]:
    while True:
        meaning = draw(pool)
        if kind == OTHER_INTENT:
            others = siblings(meaning)
        else:
            others = [draw(pool, meaning.intent if kind == OTHER_CONTENT else None)]
        others = [other for other in others if _differs(meaning, other, kind)]
        if others:
            return meaning, pool.pick(others)


def _differs(meaning: Meaning, other: Meaning, kind: str) -> bool:
    intent, content = meaning.intent != other.intent, meaning.content != other.content
    return (intent, content) == (kind != OTHER_CONTENT, kind != OTHER_INTENT)


def measure(
    model: BertModel, tokenizer: PreTrainedTokenizerBase, found: list[Triplet]
) -> dict[str, tuple[int, int]]:
    """For each kind, how many triplets are ranked right, and how many there are."""
    right: Counter[str] = Counter()
    with torch.inference_mode():
        sides = [
            embed(model, tokenizer, [getattr(triplet, side) for triplet in found])
            for side in ("anchor", "like", "unlike")
        ]
    anchor, like, unlike = sides
    nearer = (anchor * like).sum(-1) > (anchor * unlike).sum(-1)
    for triplet, good in zip(found, nearer.tolist(), strict=True):
        right[triplet.kind] += good
    return {kind: (right[kind], count) for kind, count in Counter(t.kind for t in found).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--triplets", type=int, default=3000)
    parser.add_argument("--model", type=Path, default=FOLDER)
    options = parser.parse_args()
    model = BertModel.from_pretrained(options.model, add_pooling_layer=False).eval()
    scores = measure(model, load(), triplets(options.seed, options.triplets))
    for kind, (right, count) in scores.items():
        print(f"{kind}: {right} of {count}, {right / count:.1%}")
    right, count = (sum(column) for column in zip(*scores.values(), strict=True))
    print(f"all: {right} of {count}, {right / count:.1%}")


if __name__ == "__main__":
    main()
