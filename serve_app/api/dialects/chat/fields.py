"""Fields that bodies of OpenAI's protocol share, with their ranges and their meaning for a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final

from serve_app import limits
from serve_app.api.dialects.chat import field_types
from serve_app.api.dialects.chat.beam import BeamFields, beam_names
from serve_app.api.dialects.chat.loops import FIELD as LOOPS
from serve_app.api.dialects.chat.loops import RepetitionDetection
from serve_app.api.dialects.chat.response_format.grammar import FIELDS as GRAMMAR_FIELDS
from serve_app.api.dialects.chat.response_format.grammar import WHITESPACE, Form, parse_form
from serve_app.api.dialects.chat.sampling import sampling_params
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import (
    MAX_TOKEN_ID,
    Boolean,
    Flag,
    Integer,
    Integers,
    Number,
    Sets,
    Text,
    Texts,
)
from serve_app.errors import InvalidField, UnsupportedField
from serve_app.types import LEFT_TO_MODEL, Grammar, SamplingParams

# Fields of chats that would change the answer of a completion if they were ignored.
_OF_CHATS: Final = ("tools", "functions", "function_call")
_CHAT: Final = "/v1/chat/completions"


class StreamOptions(WireModel):
    include_usage: Annotated[bool | None, Boolean] = None


class UsageOptions(StreamOptions):
    """OpenAI's options for a stream, and the one that vLLM adds."""

    continuous_usage_stats: Annotated[bool | None, Boolean] = None


class AnswerFields(WireModel):
    """The answer's fields, which every body has: how tokens are drawn, and where it ends. None: absent."""

    model: field_types.ModelName = None
    temperature: field_types.Temperature = None
    top_p: field_types.TopP = None
    top_k: field_types.TopK = None
    min_p: field_types.MinP = None
    typical_p: field_types.TypicalP = None
    repetition_penalty: field_types.RepetitionPenalty = None
    presence_penalty: field_types.Penalty = None
    frequency_penalty: field_types.Penalty = None
    logit_bias: field_types.LogitBias = None
    seed: field_types.Seed = None
    stop: field_types.Stop = None
    stop_token_ids: field_types.StopTokenIds = None
    bad_words: Annotated[tuple[str, ...] | None, Texts(limits.MAX_BAD_WORDS, limits.MAX_STOP_CHARS)] = doc(
        "default none; never generated"
    )
    allowed_token_ids: Annotated[
        tuple[int, ...] | None, Integers(limits.MAX_ALLOWED_TOKEN_IDS, 0, MAX_TOKEN_ID)
    ] = doc("default all; no other token is drawn")
    no_repeat_ngram_size: Annotated[
        int | None, Integer(0, limits.MAX_NO_REPEAT_NGRAM), Sets("no_repeat_ngram")
    ] = doc(", off; no n-gram of this size twice", default=0)
    watermark: Flag = doc("green-list bias, found by `/v1/watermark/detect`", default=False)
    logits_processors: field_types.LogitsProcessors = None
    min_tokens: field_types.MinTokens = None
    ignore_eos: Flag = doc("continues after the end token", default=False)
    include_stop_str_in_output: Flag = doc("keeps the stop string", default=False)
    skip_special_tokens: Flag = doc("special tokens are no text", default=True)
    priority: Annotated[int | None, Integer(-limits.MAX_PRIORITY, limits.MAX_PRIORITY)] = doc(
        "lower runs earlier", default=0
    )
    user: field_types.User = None
    stream: field_types.Stream = None
    timeout: Annotated[float | None, Number(0, limits.MAX_TIMEOUT_S, above=True)] = doc(
        "seconds; default the operator's; the deadline of the request"
    )

    def endpoint(self, of_path: str | None) -> str:
        """The name of the endpoint, from the path or else from the body. Raises InvalidField."""
        name = self.model if of_path is None else of_path
        if name is None:
            raise InvalidField("model", "is required")
        return name

    def sampling(self, max_tokens: int | None) -> SamplingParams:
        return sampling_params(
            self,
            top_k=max(self.top_k or 0, 0),  # -1 also means off
            no_repeat_ngram=self.no_repeat_ngram_size or 0,
            processors=self.logits_processors or (),
            seed=None if self.seed is None else self.seed % 2**64,
            max_tokens=max_tokens,
        )

    @property
    def left_to_model(self) -> tuple[str, ...]:
        """The sampling fields that this body leaves to the model, apart from the length."""
        return tuple(name for name in LEFT_TO_MODEL if name != "max_tokens" and getattr(self, name) is None)

    def row_options(self) -> dict[str, Any]:
        """The fields of a `GenerateRequest` that follow from the fields of this class."""
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
    """All fields except the prompt, the length and the log-probabilities. None: absent."""

    fields_beside: ClassVar[Mapping[str, Any]] = field_types.GUIDES

    n: field_types.Choices = None
    best_of: field_types.BestOf = None
    prompt_logprobs: field_types.PromptLogprobs = None
    stream_options: UsageOptions | None = doc(
        "see its member",
        accepts="an object; only with `stream: true`",
        members={
            "include_usage": FieldDoc("a last chunk with `usage`, null in the others", default=False),
            "continuous_usage_stats": FieldDoc(
                "beside `include_usage`: every chunk has the usage so far", default=False
            ),
        },
    )
    return_token_ids: Flag = doc("adds `prompt_token_ids` and each choice's `token_ids`", default=False)
    return_tokens_as_token_ids: Flag = doc("log-probabilities name a token `token_id:7`", default=False)
    repetition_detection: RepetitionDetection | None = doc(
        "default none; an answer that repeats itself ends, with the finish reason repetition",
        accepts="an object; see its members; not beside `use_beam_search`",
    )
    truncate_prompt_tokens: field_types.TruncatePrompt = None
    cache_salt: Annotated[str | None, Text(1, limits.MAX_CACHE_SALT_CHARS)] = doc(
        "default none; only requests with the same one share cached prefixes, within a key"
    )

    def check(self) -> None:
        """Check combinations of fields. Raises InvalidField."""
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
        """As `AnswerFields.sampling`, with the rule that ends repetitive answers. Raises InvalidField."""
        sampling = super().sampling(max_tokens)
        loop = None if self.repetition_detection is None else self.repetition_detection.rule()
        if loop is not None and self.use_beam_search:
            raise InvalidField(LOOPS, "must not be given beside use_beam_search")
        return sampling if loop is None else replace(sampling, loop=loop)

    def _check_fields_of_chats(self) -> None:
        extra = self.extra
        for name in _OF_CHATS:
            if extra.get(name):
                raise UnsupportedField(name, f"only chats have tools; use {_CHAT}")
        if extra.get("tool_choice") not in (None, "none", "auto"):
            raise UnsupportedField("tool_choice", f"only chats have tools; use {_CHAT}")

    @property
    def ignored(self) -> tuple[str, ...]:
        """Fields whose value has no effect, as the client spelt them."""
        understood = (*GRAMMAR_FIELDS, WHITESPACE, "tool_choice", *_OF_CHATS)
        return (*(name for name in self.extra if name not in understood), *self.meaningless)

    @property
    def names(self) -> dict[str, str]:
        """As `WireModel.names`, with the names for a search and for the answer's form."""
        extra = self.extra
        given = [name for name in GRAMMAR_FIELDS if name in extra]
        grammar = {"response_format": given[-1]} if given else {}
        return {**super().names, **(beam_names(self.best_of) if self.use_beam_search else {}), **grammar}

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream reports the usage so far."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    def form(self) -> Form:
        """The form of the answer. Raises InvalidField or UnsupportedField."""
        return parse_form(self.extra, subset=True)

    def options(self, grammar: Grammar | None) -> dict[str, Any]:
        """The fields of a `GenerateRequest` that are equal for every prompt of the body.

        Raises InvalidField for a search with invalid settings.
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
