"""Trains demo-embed to put sentences of one meaning together, and writes the model folder.

Contrastive: a batch holds two ways of saying each of its meanings, and each must find the
other among all. Half of the meanings come in families of one intent or of one content, so
that both have to be read. The length of a run is its number of steps,
so that a seed gives the same model again.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from pathlib import Path
from typing import Final

import torch
from torch.nn.functional import cross_entropy, normalize
from transformers import BertConfig, BertModel, PreTrainedTokenizerBase

from recipes.demo_chat.tokenizer import FOLDER as TOKENIZER_FOLDER
from recipes.demo_chat.tokenizer import load
from recipes.demo_chat.words import Pool
from recipes.demo_embed.meanings import Meaning, draw, siblings, ways_of

FOLDER: Final = TOKENIZER_FOLDER.with_name("demo-embed")
WIDTH: Final = 128
WINDOW: Final = 256  # tokens
_TEMPERATURE: Final = 0.05
_WARM_UP: Final = 0.05  # of all steps
_SAME: Final = -1e4  # the score of what says the same as the anchor and is not its pair: no negative

# As sentence-transformers lays a model out: its parts in order, and the settings of the second.
_MODULES: Final = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
_POOLING: Final = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}


def new_model(tokenizer: PreTrainedTokenizerBase) -> BertModel:
    """A BERT of about 900,000 parameters."""
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=WINDOW,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertModel(config, add_pooling_layer=False)


def embed(model: BertModel, tokenizer: PreTrainedTokenizerBase, sentences: list[str]) -> torch.Tensor:
    """Unit vectors [N, WIDTH]: the mean over each sentence's tokens."""
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    mask = batch["attention_mask"]
    hidden = model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    weights = mask[..., None].to(hidden.dtype)
    return normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def meanings(pool: Pool, count: int) -> list[Meaning]:
    """`count` meanings, half of them in families of one intent or of one content."""
    drawn = [draw(pool) for _ in range(count // 2)]
    while len(drawn) < count:
        first = draw(pool)
        others = siblings(first) if pool.chance(0.3) else [draw(pool, first.intent) for _ in range(3)]
        drawn += [first, *others]
    return drawn[:count]


def loss_of(vectors: torch.Tensor, others: torch.Tensor, batch: list[Meaning]) -> torch.Tensor:
    """How badly the N first sentences find their pairs among all others, and the other way round."""
    scores = vectors @ others.T / _TEMPERATURE
    numbers = {meaning: number for number, meaning in enumerate(dict.fromkeys(batch))}
    own = torch.tensor([numbers[meaning] for meaning in batch])
    same = (own[:, None] == own) & ~torch.eye(len(batch), dtype=torch.bool)
    scores = scores.masked_fill(same, _SAME)
    wanted = torch.arange(len(batch))
    return (cross_entropy(scores, wanted) + cross_entropy(scores.T, wanted)) / 2


def save(model: BertModel, folder: Path) -> None:
    """Write weights, configuration, tokenizer and the parts after the encoder."""
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER_FOLDER / name, folder / name)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(_POOLING, indent=2) + "\n", "utf-8")
    (folder / "modules.json").write_text(json.dumps(_MODULES, indent=2) + "\n", "utf-8")


def train(seed: int, steps: int, count: int, rate: float, output: Path) -> None:
    """`steps` steps of `count` meanings each."""
    torch.manual_seed(seed)
    pool = Pool(f"embedding {seed}")
    tokenizer = load()
    model = new_model(tokenizer).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _scale(step, steps))
    started, smooth = time.monotonic(), 0.0
    for step in range(steps):
        batch = meanings(pool, count)
        pairs = [pool.rng.sample(ways_of(meaning, held=False), 2) for meaning in batch]
        said = [
            meaning.say(pair[side]) for side in (0, 1) for meaning, pair in zip(batch, pairs, strict=True)
        ]
        vectors = embed(model, tokenizer, said)
        loss = loss_of(vectors[:count], vectors[count:], batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        smooth = loss.item() if step == 0 else 0.95 * smooth + 0.05 * loss.item()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step} loss {smooth:.4f} {time.monotonic() - started:.0f} s", flush=True)
    output.mkdir(parents=True, exist_ok=True)
    save(model.eval(), output)


def _scale(step: int, steps: int) -> float:
    warm = max(1.0, steps * _WARM_UP)
    return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--meanings", type=int, default=128, help="in one batch, two sentences each")
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    train(options.seed, options.steps, options.meanings, options.rate, options.output)


if __name__ == "__main__":
    main()
