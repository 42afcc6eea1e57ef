"""What a replica and its grammar process say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.types import Grammar


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The tokens that grammars are laid over."""

    tokenizer_json: str
    vocab_size: int  # of the model
    own_vocab_size: int  # of the tokenizer
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Parent -> child: first the setup, then one grammar at a time."""

    setup: Setup | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Child -> parent, one for each command; empty: the setup is done."""

    compiled: str | None = None  # the grammar in llguidance's notation, tried out
    refused: str | None = None  # the message of an InvalidField
    unavailable: str | None = None  # grammars cannot be had over this tokenizer
