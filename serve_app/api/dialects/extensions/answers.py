"""The shapes of answers to questions, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict


class Tokenized(TypedDict):
    """The tokens of a prompt, and how many the model's window has."""

    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: Sequence[str] | None


class Detokenized(TypedDict):
    """The text of tokens."""

    prompt: str


class Detected(TypedDict):
    """How far a text's green tokens are from what chance gives, in standard deviations."""

    z_score: float
    green_fraction: float
    num_tokens: int
    detected: bool
