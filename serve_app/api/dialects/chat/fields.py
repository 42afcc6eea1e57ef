"""Fields that bodies of OpenAI's protocol share, with their ranges, and what they mean to a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from serve_app import limits
from serve_app.api.dialects.chat.beam import BeamFields, beam_names
from serve_app.api.dialects.chat.loops import FIELD as LOOPS
from serve_app.api.dialects.chat.loops import RepetitionDetection
from serve_app.api.dialects.chat.processors import Processors
from serve_app.api.dialects.chat.response_format.grammar import FIELDS as GRAMMAR_FIELDS
from serve_app.api.dialects.chat.response_format.grammar import WHITESPACE, Form, parse_form
from serve_app.api.dialects.chat.shapes import GUIDES
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.fields import MAX_TOKEN_ID as MAX_TOKEN_ID
from serve_app.api.protocol.fields import (
    Biases,
    Boolean,
    Integer,
    Integers,
    Number,
    Text,
    Texts,
    as_integer,
    checked,
    refusal,
)
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.types import LEFT_TO_MODEL, Grammar, ProcessorCall, SamplingParams

# Fields of `SamplingParams` under the same name, with the same default.
_SAME = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "stop_token_ids",
    "allowed_token_ids",
    "ignore_eos",
    "watermark",
)

# A replica's names of fields -> ours, where they differ.
NAMES: Final = {"no_repeat_ngram": "no_repeat_ngram_size"}

# Fields of chats that would change the answer of a completion if they were ignored.
_OF_CHATS: Final = ("tools", "functions", "function_call")
_CHAT: Final = "/v1/chat/completions"


def _truncation(value: Any) -> int:
    number = as_integer(value)
    if number is None or not (number == -1 or 1 <= number <= limits.MAX_TOKENS):
        raise refusal(f"must be -1 or an integer from 1 to {limits.MAX_TOKENS}")
    return number


Truncation: Final = checked(_truncation, Literal[-1] | Annotated[int, Field(ge=1, le=limits.MAX_TOKENS)])


class StreamOptions(WireModel):
    include_usage: Annotated[bool | None, Boolean] = None


class UsageOptions(StreamOptions):
    """OpenAI's options of a stream, and vLLM's."""

    continuous_usage_stats: Annotated[bool | None, Boolean] = None


class AnswerFields(WireModel):
    """What every body says of the answer that it wants: how it is drawn, where it ends. None: absent."""

    model: Annotated[str | None, Text(1, limits.MAX_MODEL_NAME_CHARS)] = None
    temperature: Annotated[float | None, Number(0, limits.MAX_TEMPERATURE)] = None
    top_p: Annotated[float | None, Number(0, 1, above=True)] = None
    top_k: Annotated[int | None, Integer(-1, limits.MAX_TOKENS)] = None
    min_p: Annotated[float | None, Number(0, 1)] = None
    typical_p: Annotated[float | None, Number(0, 1, above=True)] = None
    repetition_penalty: Annotated[float | None, Number(0, limits.MAX_REPETITION_PENALTY, above=True)] = None
    presence_penalty: Annotated[float | None, Number(-limits.MAX_PENALTY, limits.MAX_PENALTY)] = None
    frequency_penalty: Annotated[float | None, Number(-limits.MAX_PENALTY, limits.MAX_PENALTY)] = None
    logit_bias: Annotated[
        tuple[tuple[int, float], ...] | None,
        Biases(limits.MAX_LOGIT_BIAS, MAX_TOKEN_ID, limits.MAX_ABS_LOGIT_BIAS),
    ] = None
    seed: Annotated[int | None, Integer(-(2**63), 2**63 - 1)] = None
    stop: Annotated[
        tuple[str, ...] | None, Texts(limits.MAX_STOP_STRINGS, limits.MAX_STOP_CHARS, single=True)
    ] = None
    stop_token_ids: Annotated[
        tuple[int, ...] | None, Integers(limits.MAX_STOP_TOKEN_IDS, 0, MAX_TOKEN_ID)
    ] = None
    bad_words: Annotated[tuple[str, ...] | None, Texts(limits.MAX_BAD_WORDS, limits.MAX_STOP_CHARS)] = None
    allowed_token_ids: Annotated[
        tuple[int, ...] | None, Integers(limits.MAX_ALLOWED_TOKEN_IDS, 0, MAX_TOKEN_ID)
    ] = None
    no_repeat_ngram_size: Annotated[int | None, Integer(0, limits.MAX_NO_REPEAT_NGRAM)] = None
    watermark: Annotated[bool | None, Boolean] = None
    logits_processors: Annotated[tuple[ProcessorCall, ...] | None, Processors] = None
    min_tokens: Annotated[int | None, Integer(0, limits.MAX_TOKENS)] = None
    ignore_eos: Annotated[bool | None, Boolean] = None
    include_stop_str_in_output: Annotated[bool | None, Boolean] = None
    skip_special_tokens: Annotated[bool | None, Boolean] = None
    priority: Annotated[int | None, Integer(-limits.MAX_PRIORITY, limits.MAX_PRIORITY)] = (
        None  # lower: earlier
    )
    user: Annotated[str | None, Text(0, limits.MAX_USER_CHARS)] = None
    stream: Annotated[bool | None, Boolean] = None
    timeout: Annotated[float | None, Number(0, limits.MAX_TIMEOUT_S, above=True)] = None

    def endpoint(self, of_path: str | None) -> str:
        """The endpoint asked for: the path's, else the body's. Raises InvalidField."""
        name = self.model if of_path is None else of_path
        if name is None:
            raise InvalidField("model", "is required")
        return name

    def sampling(self, max_tokens: int | None) -> SamplingParams:
        fields: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        given = {name: value for name, value in fields.items() if value is not None}
        return SamplingParams(
            **given,
            top_k=max(self.top_k or 0, 0),  # -1 also means off
            no_repeat_ngram=self.no_repeat_ngram_size or 0,
            processors=self.logits_processors or (),
            seed=None if self.seed is None else self.seed % 2**64,
            max_tokens=max_tokens,
        )

    @property
    def left_to_model(self) -> tuple[str, ...]:
        """The fields of the sampling that this body leaves to the model, the length not among them."""
        return tuple(name for name in LEFT_TO_MODEL if name != "max_tokens" and getattr(self, name) is None)

    def row_options(self) -> dict[str, Any]:
        """The fields of a `GenerateRequest` that the fields of this class decide."""
        return {
            "left_to_model": self.left_to_model,
            "priority": -(self.priority or 0),
            "stop": self.stop or (),
            "include_stop": bool(self.include_stop_str_in_output),
            "skip_special_tokens": self.skip_special_tokens is not False,
            "bad_words": self.bad_words or (),
            "stream": bool(self.stream),
        }


class SharedFields(AnswerFields, BeamFields):
    """Everything but the prompt, its length and log-probabilities. None: absent."""

    free_form: ClassVar[tuple[str, ...]] = ("stream_options", LOOPS)
    fields_beside: ClassVar[Mapping[str, Any]] = GUIDES

    n: Annotated[int | None, Integer(1, limits.MAX_N)] = None
    best_of: Annotated[int | None, Integer(1, limits.MAX_BEST_OF)] = None
    prompt_logprobs: Annotated[int | None, Integer(0, limits.MAX_LOGPROBS)] = None
    stream_options: UsageOptions | None = None
    return_token_ids: Annotated[bool | None, Boolean] = None
    return_tokens_as_token_ids: Annotated[bool | None, Boolean] = None
    repetition_detection: RepetitionDetection | None = None
    truncate_prompt_tokens: Annotated[int | None, Truncation] = None
    cache_salt: Annotated[str | None, Text(1, limits.MAX_CACHE_SALT_CHARS)] = None

    def check(self) -> None:
        """What single fields cannot tell. Raises InvalidField."""
        self._check_fields_of_chats()
        n, best_of = self.n or 1, self.best_of
        if best_of is not None and best_of < n:
            raise InvalidField("best_of", "must be at least n")
        if best_of is not None and best_of > n and self.stream and not self.use_beam_search:
            raise InvalidField("best_of", "cannot be streamed when it is greater than n")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidField("prompt_logprobs", "cannot be streamed")
        if self.stream_options is not None and not self.stream:
            raise InvalidField("stream_options", "only allowed when stream is true")

    def sampling(self, max_tokens: int | None) -> SamplingParams:
        """As `AnswerFields.sampling`, with the end of answers that repeat themselves. Raises InvalidField."""
        sampling = super().sampling(max_tokens)
        loop = None if self.repetition_detection is None else self.repetition_detection.rule()
        if loop is not None and self.use_beam_search:
            raise InvalidField(LOOPS, "must not be given beside use_beam_search")
        return sampling if loop is None else replace(sampling, loop=loop)

    def _check_fields_of_chats(self) -> None:
        extra = self.__pydantic_extra__ or {}
        for name in _OF_CHATS:
            if extra.get(name):
                raise UnsupportedField(name, f"only chats have tools; use {_CHAT}")
        if extra.get("tool_choice") not in (None, "none", "auto"):
            raise UnsupportedField("tool_choice", f"only chats have tools; use {_CHAT}")

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields with a value that nobody looks at, as the client spelt them."""
        understood = (*GRAMMAR_FIELDS, WHITESPACE, "tool_choice", *_OF_CHATS)
        extra = self.__pydantic_extra__ or {}
        unknown = [name for name, value in extra.items() if value is not None and name not in understood]
        return (*unknown, *self.meaningless)

    @property
    def names(self) -> dict[str, str]:
        """A replica's names of fields -> those under which the client gave them, for its errors."""
        extra = self.__pydantic_extra__ or {}
        given = [name for name in GRAMMAR_FIELDS if extra.get(name) is not None]
        grammar = {"response_format": given[-1]} if given else {}
        return {**NAMES, **(beam_names(self.best_of) if self.use_beam_search else {}), **grammar}

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream tells the usage so far."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def form(self) -> Form:
        """What the answer must match. Raises InvalidField or UnsupportedField."""
        return parse_form(self.__pydantic_extra__ or {}, subset=True)

    def options(self, grammar: Grammar | None) -> dict[str, Any]:
        """The fields of a `GenerateRequest` that are equal for every prompt of the body.

        Raises InvalidField for a search that cannot be.
        """
        beam = self.beam(self.n, self.best_of)
        return {
            **self.row_options(),
            "n": self.n or 1,
            "best_of": self.best_of if beam is None else None,
            "beam": beam,
            "prompt_ids": bool(self.return_token_ids),
            "truncate_prompt": self.truncate_prompt_tokens,
            "salt": self.cache_salt or "",
            "grammar": grammar,
        }
