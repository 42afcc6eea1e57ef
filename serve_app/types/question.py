"""Questions to a model that have one answer: no tokens follow, so nothing is streamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from serve_app.types.result import Tensor

ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Generic[ReplyT]):
    """What a gateway asks in one call; `ReplyT` is what it is told (see `channel/questions.py`)."""

    id: str  # made by us at the gateway, never the client's
    timeout_s: float | None = None  # from the moment the replica has the question


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """One vector an input, in the order of the inputs."""

    vectors: Tensor  # FP32, (inputs, dimensions)
    prompt_tokens: int  # of all inputs, with what the model's own format and the instruction add


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest(Question[Embeddings]):
    """One vector for each of `inputs`."""

    inputs: tuple[str | tuple[int, ...], ...]  # at least one; text, or token ids taken as they are
    instruction: str | None = None  # given to the model with every text; None: none
    dimensions: int | None = None  # the first so many, normalised anew; None: all
    truncate: bool = False  # an input longer than the window is cut at its end instead of an error
