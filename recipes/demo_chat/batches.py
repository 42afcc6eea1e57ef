"""Texts to batches of token ids: which tokens are learnt, and rows of like length together.

Of a dialogue only the assistant's turns are learnt, each with the token that ends
it; of a document the pieces that say so, and its end. Knows no model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from transformers import PreTrainedTokenizerBase

from recipes.demo_chat.corpus import dialogues, documents
from recipes.demo_chat.documents import Document, Piece
from recipes.demo_chat.tokenizer import CONTEXT

_POOL: Final = 4096  # dialogues drawn at a time; rows of like length are found among them


@dataclass(frozen=True)
class Row:
    """One text: its ids, and for each whether the model learns to say it."""

    ids: list[int]
    learnt: list[bool]


@dataclass(frozen=True)
class Batch:
    ids: torch.Tensor  # [B, T] padded on the right
    learnt: torch.Tensor  # [B, T] bool; false on padding


def batches(tokenizer: PreTrainedTokenizerBase, seed: int, tokens: int, version: int = 1) -> Iterator[Batch]:
    """Endless batches of at most `tokens` tokens each, padding included; no text comes twice."""
    return grouped(tokenizer, lambda pool: _rows(tokenizer, pool, version), seed, tokens)


def grouped(
    tokenizer: PreTrainedTokenizerBase, rows_of: Callable[[int], list[Row]], seed: int, tokens: int
) -> Iterator[Batch]:
    """Batches of the rows that `rows_of` draws from one seed after another, rows of like length together."""
    rng = random.Random(seed)
    pad = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    pool = 0
    while True:
        rows = sorted(rows_of(seed * 1_000_000 + pool), key=lambda row: len(row.ids))
        pool += 1
        groups: list[list[Row]] = [[]]
        for row in rows:
            if groups[-1] and (len(groups[-1]) + 1) * len(row.ids) > tokens:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        yield from (_padded(group, pad) for group in groups)


def chat_row(tokenizer: PreTrainedTokenizerBase, text: str) -> Row:
    """A rendered dialogue; learnt are the assistant's turns."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    opening: list[int] = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    learnt = [False] * len(ids)
    at = 0
    while at < len(ids):
        if ids[at : at + len(opening)] == opening:
            at += len(opening)
            stop = ids.index(end, at)
            learnt[at : stop + 1] = [True] * (stop + 1 - at)
            at = stop
        at += 1
    return Row(ids, learnt)


def document_row(tokenizer: PreTrainedTokenizerBase, document: Document) -> Row:
    """A document and its end; pieces part where tokens do."""
    row = Row([], [])
    for piece in (*document, Piece("<|endoftext|>", True)):
        ids = tokenizer(piece.text, add_special_tokens=False)["input_ids"]
        row.ids.extend(ids)
        row.learnt.extend([piece.learnt] * len(ids))
    return row


def _rows(tokenizer: PreTrainedTokenizerBase, seed: int, version: int) -> list[Row]:
    rows = [document_row(tokenizer, document) for document in documents(seed, _POOL * 3 // 4)]
    for dialogue in dialogues(seed, _POOL, version=version):
        text = tokenizer.apply_chat_template(
            dialogue.messages(), tools=dialogue.tools or None, tokenize=False
        )
        rows.append(chat_row(tokenizer, str(text)))
    return [row for row in rows if len(row.ids) <= CONTEXT]


def _padded(rows: list[Row], pad: int) -> Batch:
    longest = max(len(row.ids) for row in rows)
    return Batch(
        ids=torch.tensor([row.ids + [pad] * (longest - len(row.ids)) for row in rows]),
        learnt=torch.tensor([row.learnt + [False] * (longest - len(row.learnt)) for row in rows]),
    )
