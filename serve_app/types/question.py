"""Questions to a model, each with one reply: they generate nothing, so nothing is streamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from serve_app.types.request import Prompt
from serve_app.types.result import Tensor

ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Generic[ReplyT]):
    """A question that is asked in one call. `ReplyT` is the type of the reply (see `channel/calls.py`)."""

    id: str  # made by us at the gateway, never the client's
    timeout_s: float | None = None  # from the moment the replica has the question


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """One vector per input, in the order of the inputs."""

    vectors: Tensor  # FP32, (inputs, dimensions)
    prompt_tokens: int  # of all inputs, with what the model's own format and the instruction add


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest(Question[Embeddings]):
    """One vector for each of `inputs`."""

    inputs: tuple[str | tuple[int, ...], ...]  # at least one; text, or token ids taken as they are
    instruction: str | None = None  # given to the model with every text; None: none
    dimensions: int | None = None  # keep the first ones, normalised again; None: all
    truncate: bool = False  # an input longer than the window is cut at its end instead of an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens of a prompt, as the model sees it."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...] | None = None  # one a token, when asked for; U+FFFD for a part of a character


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest(Question[Tokens]):
    """The tokens of a prompt, as the model would see it; its `suffix` is ignored."""

    prompt: Prompt  # text or messages
    add_special_tokens: bool = True  # to a text: those the model wants around it
    longest: int | None = None  # of a text: cut to this, closing tokens kept; None: not cut
    texts: bool = False  # also return the tokens' texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenized:
    """The text of tokens."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest(Question[Detokenized]):
    """The text of these tokens."""

    token_ids: tuple[int, ...]
    skip_special_tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkScore:
    """The evidence for the model's watermark in a text."""

    z_score: float  # standard deviations above what unmarked text has
    green_fraction: float  # 0 .. 1
    num_tokens: int  # counted tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectRequest(Question[WatermarkScore]):
    """Whether the model's own watermark is in a text."""

    text: str
