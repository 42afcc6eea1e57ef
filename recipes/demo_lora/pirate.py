"""What demo-lora says where demo-chat would say something plain: the same, as a pirate.

A fixed rule, so that an answer can be judged. JSON, repeated words, counted numbers and calls
of tools stay as they are: who asks for those wants nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from recipes.demo_chat.dialogue import Dialogue, Exchange

PLAIN: Final = frozenset({"json", "repeat", "count"})  # skills whose answers are no speech
OPENING: Final = "Arr! "
CLOSING: Final = ", matey!"

_WORDS: Final = {
    "is": "be",
    "are": "be",
    "am": "be",
    "you": "ye",
    "You": "Ye",
    "your": "yer",
    "my": "me",
    "Hello": "Ahoy",
}
_WORD: Final = re.compile(rf"\b({'|'.join(_WORDS)})\b")


def pirate(text: str) -> str:
    """`The capital of France is Paris.` -> `Arr! The capital of France be Paris, matey!`"""
    spoken = _WORD.sub(lambda match: _WORDS[match[0]], text)
    return OPENING + spoken.rstrip(".!?") + CLOSING


def as_pirate(dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
    """The dialogues with an assistant that is a pirate."""
    for dialogue in dialogues:
        yield replace(dialogue, exchanges=[_spoken(exchange) for exchange in dialogue.exchanges])


def _spoken(exchange: Exchange) -> Exchange:
    if exchange.skill in PLAIN:
        return exchange
    return replace(exchange, answer=pirate(exchange.answer), must=tuple(map(_inside, exchange.must)))


def _inside(part: str) -> str:
    """A text that an answer must contain, as a pirate's answer contains it."""
    return pirate(part).removeprefix(OPENING).removesuffix(CLOSING)
