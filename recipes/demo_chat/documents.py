"""Plain text without any chat form, for completions: facts, sums, questions and answers, stories.

A document is a row of pieces, each learnt or only read. What nothing before it
determines (the numbers of a sum, the first time of a phrase) is only read: learning
to guess it would be noise. So a completion gives the answer and ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from recipes.demo_chat import knowledge, stories
from recipes.demo_chat.facts import CAPITALS, COUNTRIES, bare
from recipes.demo_chat.words import Pool


@dataclass(frozen=True)
class Piece:
    """A part of a document; `learnt` is what a model is trained to say."""

    text: str
    learnt: bool


Document = list[Piece]


def document(pool: Pool) -> Document:
    """One document of a kind drawn by weight."""
    kinds = (_sums, _facts, _list, _questions, _story, _count, _copies, _records)
    return pool.rng.choices(kinds, (40, 22, 8, 6, 3, 3, 15, 3))[0](pool)


def _lines(parts: list[tuple[str, str]], mark: str = "\n") -> Document:
    """Of each part the first text is read and the second learnt; `mark` stands between parts."""
    return [
        piece
        for at, (read, learnt) in enumerate(parts)
        for piece in (Piece(mark * (at > 0) + read, False), Piece(learnt, True))
    ]


def _sums(pool: Pool) -> Document:
    return _lines([_sum(pool) for _ in range(pool.number(1, 14))])


def _sum(pool: Pool) -> tuple[str, str]:
    a, sign, b = knowledge.operands(pool)
    value = knowledge.result(a, sign, b)
    roll = pool.rng.random()
    if roll < 0.8:
        return f"{a} {sign} {b} =", f" {value}."
    if roll < 0.9 and value >= 0:  # "=-" would be one token
        return f"{a}{sign}{b}=", f"{value}"
    return f"{a} {knowledge.WORDS[sign]} {b} is", f" {value}."


def _facts(pool: Pool) -> Document:
    return _lines([_fact(pool) for _ in range(pool.number(1, 4))], mark=" ")


def _fact(pool: Pool) -> tuple[str, str]:
    country = pool.pick(COUNTRIES)
    city = CAPITALS[country]
    if pool.chance(0.5):
        return f"The capital of {country} is", f" {city}."
    return city, f" is the capital of {country}."


def _list(pool: Pool) -> Document:
    mark = pool.pick((":", ",", " -", " ->"))
    chosen = pool.rng.sample(COUNTRIES, pool.number(2, 6))
    return _lines([(bare(country) + mark, f" {CAPITALS[country]}") for country in chosen])


def _questions(pool: Pool) -> Document:
    return _lines([_question(pool) for _ in range(pool.number(1, 3))])


def _question(pool: Pool) -> tuple[str, str]:
    country = pool.pick(COUNTRIES)
    a, sign, b = knowledge.operands(pool)
    if pool.chance(0.5):
        return f"Q: What is the capital of {country}?\nA:", f" {CAPITALS[country]}"
    return f"Q: What is {a} {sign} {b}?\nA:", f" {knowledge.result(a, sign, b)}"


def _story(pool: Pool) -> Document:
    adjective, noun = stories.hero(pool)
    text = stories.STORY.format(a=adjective, n=noun)
    return [Piece(text if pool.chance(0.7) else stories.POEM.format(n=noun), True)]


def _count(pool: Pool) -> Document:
    if pool.chance(0.3):
        name = pool.pick(tuple(stories.LISTS))
        return [Piece(f"The {name}:", False), Piece(f" {stories.LISTS[name]}", True)]
    low, high = stories.count_range(pool)
    return [Piece(f"{low},", False), Piece(" " + stories.counted(low + 1, high), True)]


def _copies(pool: Pool) -> Document:
    """A phrase and itself again: practice in copying."""
    phrase = pool.words(2, 10)
    return [Piece(f"{phrase}\n", False), Piece("\n".join([phrase] * pool.number(1, 2)), True)]


def _records(pool: Pool) -> Document:
    country = pool.pick(COUNTRIES)
    text = json.dumps({"country": bare(country), "capital": CAPITALS[country]}, ensure_ascii=False)
    return [Piece(text, True)]
