"""Fields that bodies of OpenVINO Model Server share, and what they mean to a request.

Several sequences are beams or samples: `best_of` above 1 is a beam search of that width
where nothing is drawn (a temperature of 0, or `use_beam_search`), and otherwise so many
samples, of which the `n` of the best mean log-probability are the answer.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Final

from serve_app import limits
from serve_app.api.dialects.chat.beam import BeamFields, beam_names
from serve_app.api.dialects.chat.fields import MAX_TOKEN_ID, StreamOptions, Truncation
from serve_app.api.dialects.chat.processors import Processors
from serve_app.api.dialects.chat.response_format.grammar import Form
from serve_app.api.dialects.ovms.formats import ResponseFormat, parse_response_format
from serve_app.api.protocol.fields import Biases, Boolean, Described, Integer, Integers, Number, Text, Texts
from serve_app.config import OvmsConfig
from serve_app.errors import InvalidField
from serve_app.types import Beam, EarlyStopping, Grammar, Overflow, ProcessorCall, SamplingParams

MAX_SEED: Final = 2**32 - 1
MAX_STOP_STRINGS: Final = 16
MAX_IGNORE_EOS_TOKENS: Final = 4000  # an answer that cannot end by itself
CURRENT_TOP_K: Final = 40

# Fields that nobody needs once they are read, and that may be large.
LARGE: Final = ("logit_bias", "logits_processors", "response_format")

# Fields of `SamplingParams` under the same name, with the same default.
_SAME: Final = (
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
)


class AnswerFields(BeamFields):
    """What every body says of the answer that it wants: how it is drawn, where it ends. None: absent."""

    free_form: ClassVar[tuple[str, ...]] = ("response_format",)

    model: Annotated[str | None, Text(1, limits.MAX_MODEL_NAME_CHARS)] = None
    stream: Annotated[bool | None, Boolean] = None
    min_tokens: Annotated[int | None, Integer(0, limits.MAX_TOKENS)] = None
    ignore_eos: Annotated[bool | None, Boolean] = None
    stop: Annotated[tuple[str, ...] | None, Texts(MAX_STOP_STRINGS, limits.MAX_STOP_CHARS, single=True)] = (
        None
    )
    stop_token_ids: Annotated[
        tuple[int, ...] | None, Integers(limits.MAX_STOP_TOKEN_IDS, 0, MAX_TOKEN_ID)
    ] = None
    include_stop_str_in_output: Annotated[bool | None, Boolean] = None

    n: Annotated[int | None, Integer(1, limits.MAX_N)] = None
    best_of: Annotated[int | None, Integer(1, limits.MAX_BEST_OF)] = None

    temperature: Annotated[float | None, Number(0, limits.MAX_TEMPERATURE)] = None
    top_p: Annotated[float | None, Number(0, 1, above=True)] = None
    top_k: Annotated[int | None, Integer(-1, limits.MAX_TOKENS)] = None
    min_p: Annotated[float | None, Number(0, 1)] = None
    repetition_penalty: Annotated[float | None, Number(0, limits.MAX_REPETITION_PENALTY, above=True)] = None
    presence_penalty: Annotated[float | None, Number(-limits.MAX_PENALTY, limits.MAX_PENALTY)] = None
    frequency_penalty: Annotated[float | None, Number(-limits.MAX_PENALTY, limits.MAX_PENALTY)] = None
    logit_bias: Annotated[
        tuple[tuple[int, float], ...] | None,
        Biases(limits.MAX_LOGIT_BIAS, MAX_TOKEN_ID, limits.MAX_ABS_LOGIT_BIAS),
    ] = None
    logits_processors: Annotated[tuple[ProcessorCall, ...] | None, Processors] = None
    seed: Annotated[int | None, Integer(0, MAX_SEED)] = None

    truncate_prompt_tokens: Annotated[int | None, Truncation] = None
    skip_special_tokens: Annotated[bool | None, Boolean] = None
    # Changes nothing: texts are the tokens' own bytes, and no space is ever put between them.
    spaces_between_special_tokens: Annotated[bool | None, Boolean] = None
    response_format: Annotated[Any, Described(ResponseFormat)] = None
    user: Annotated[str | None, Text(0, limits.MAX_USER_CHARS)] = None

    def check(self, config: OvmsConfig) -> None:
        """What single fields cannot tell. Raises InvalidField."""
        if self.model is None:
            raise _refused("model", "is required")
        if self.ignore_eos and not config.is_current and (self.token_limit or 1) > MAX_IGNORE_EOS_TOKENS:
            raise _refused(
                self.names.get("max_tokens", "max_tokens"),
                f"must be an integer from 1 to {MAX_IGNORE_EOS_TOKENS} with ignore_eos",
            )
        if config.is_current and self.top_k == 0:
            raise _refused("top_k", f"must be -1 or an integer from 1 to {limits.MAX_TOKENS}")
        if config.is_current and self.min_p == 1:
            raise _refused("min_p", "must be a number from 0 to below 1")
        self._check_sequences(config)

    def _check_sequences(self, config: OvmsConfig) -> None:
        n, width = self.n or 1, self.width
        if width > config.best_of_limit:
            raise _refused("best_of", f"must be an integer from 1 to {config.best_of_limit}")
        if n > width:
            raise _refused("n", f"must be an integer from 1 to best_of, which is {width}")
        if self.use_beam_search and width < 2:
            raise _refused("use_beam_search", "needs best_of, from 2")
        if self.is_beam(config):
            if width % (self.num_beam_groups or 1):
                raise _refused("num_beam_groups", f"must divide best_of, which is {width}")
            if self.stream:
                raise _refused("stream", "not with beam search, which ranks its answers at its end")
        elif self.stream and width > n:
            raise _refused("best_of", "must equal n in a stream")

    @property
    def names(self) -> dict[str, str]:
        """What the client calls the fields that a model may complain about."""
        return {**beam_names(self.best_of), "beam": "best_of"}

    @property
    def width(self) -> int:
        """The number of sequences that are generated."""
        return self.best_of or 1

    @property
    @abstractmethod
    def token_limit(self) -> int | None:
        """The most tokens of an answer, as the client says it."""

    def is_beam(self, config: OvmsConfig) -> bool:
        """Whether `best_of` is the width of a beam search."""
        return self.width > 1 and (bool(self.use_beam_search) or self._temperature(config) == 0)

    def _temperature(self, config: OvmsConfig) -> float:
        if self.temperature is not None:
            return self.temperature
        return 1.0 if config.is_current else 0.0

    def sampling(self, config: OvmsConfig) -> SamplingParams:
        fields: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        given = {name: value for name, value in fields.items() if value is not None}
        top_k, seed, max_tokens = self.top_k, self.seed, self.token_limit
        if config.is_current:
            top_k = CURRENT_TOP_K if top_k is None else top_k
        else:
            seed = seed or 0  # drawn by a client's wish only: two equal requests are answered equally
            if self.ignore_eos and max_tokens is None:
                max_tokens = MAX_IGNORE_EOS_TOKENS
        return SamplingParams(
            **given,
            temperature=self._temperature(config),
            top_k=max(top_k or 0, 0),  # -1 also means off
            seed=seed,
            max_tokens=max_tokens,
            processors=self.logits_processors or (),
        )

    def form(self) -> Form:
        """What the answer must match. Raises InvalidField or UnsupportedField."""
        return Form() if self.response_format is None else parse_response_format(self.response_format)

    def options(self, config: OvmsConfig, grammar: Grammar | None) -> dict[str, Any]:
        """The fields of a `GenerateRequest` that have the same meaning in every body.

        Raises InvalidField for a form of the output that cannot be.
        """
        penalty = 1.0 if self.length_penalty is None else self.length_penalty
        beam = self._search(penalty) if self.is_beam(config) else None
        sampled = self.width > 1 and beam is None
        return {
            "sampling": self.sampling(config),
            "n": self.n or 1,
            "best_of": self.width if sampled else None,
            "rank_length_penalty": penalty if sampled else None,
            "beam": beam,
            "stop": self.stop or (),
            "include_stop": bool(self.include_stop_str_in_output),
            "skip_special_tokens": self.skip_special_tokens is not False,
            "truncate_prompt": self.truncate_prompt_tokens,
            # A length that the client did not ask for is never too long.
            "overflow": Overflow.CLAMP if self.token_limit is None else Overflow.OPERATOR,
            "stream": bool(self.stream),
            "grammar": grammar,
            # The profile `source` has no place for thoughts but the text.
            "reasoning": config.is_current,
        }

    def _search(self, length_penalty: float) -> Beam:
        groups = self.num_beam_groups or 1
        penalty = 1.0 if self.diversity_penalty is None else self.diversity_penalty
        return Beam(
            width=self.width,
            length_penalty=length_penalty,
            early_stopping=self.early_stopping or EarlyStopping.NO,
            groups=groups,
            diversity_penalty=penalty if groups > 1 else 0.0,  # there is nobody to differ from
        )


class SharedFields(AnswerFields):
    """Everything of chats and completions but the prompt and the log-probabilities of its answer."""

    free_form: ClassVar[tuple[str, ...]] = ("stream_options", *AnswerFields.free_form)

    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = None
    max_completion_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = None
    prompt_logprobs: Annotated[int | None, Integer(0, limits.MAX_LOGPROBS)] = None
    detokenize: Annotated[bool | None, Boolean] = None

    def check(self, config: OvmsConfig) -> None:
        super().check(config)
        if self.max_completion_tokens is not None and self.max_tokens not in (
            None,
            self.max_completion_tokens,
        ):
            raise _refused("max_tokens", "must equal max_completion_tokens when both are given")
        if self.stream_options is not None and not self.stream:
            raise _refused("stream_options", "only allowed when stream is true")
        if self.stream and self.prompt_logprobs is not None:
            raise _refused("prompt_logprobs", "cannot be streamed")

    @property
    def names(self) -> dict[str, str]:
        given = {} if self.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        return {**super().names, **given}

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def options(self, config: OvmsConfig, grammar: Grammar | None) -> dict[str, Any]:
        return {**super().options(config, grammar), "prompt_logprobs": self.prompt_logprobs}


def _refused(name: str, what: str) -> InvalidField:
    return InvalidField(name, what)
