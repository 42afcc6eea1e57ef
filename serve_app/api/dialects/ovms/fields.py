"""Fields that bodies of OpenVINO Model Server share, and their meaning for a request.

If `best_of` is above 1, several sequences are generated. If tokens are not sampled (a temperature of 0, or
`use_beam_search`), the sequences are the beams of a search. Otherwise they are samples, and the answer is the
`n` samples with the best mean log-probability.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Final

from serve_app import limits
from serve_app.api.dialects.chat import field_types
from serve_app.api.dialects.chat.beam import (
    BeamFields,
    BeamGroups,
    DiversityPenalty,
    EarlyStop,
    LengthPenalty,
    beam_names,
)
from serve_app.api.dialects.chat.fields import StreamOptions
from serve_app.api.dialects.chat.response_format.grammar import Form
from serve_app.api.dialects.chat.sampling import sampling_params
from serve_app.api.dialects.chat.templating import FIELD, parse_variables
from serve_app.api.dialects.ovms.formats import ResponseFormat, parse_response_format
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import Described, Flag, Integer, Mark, Texts
from serve_app.config import OvmsConfig
from serve_app.errors import InvalidField
from serve_app.types import Beam, EarlyStopping, Grammar, Overflow, SamplingParams, Templating

MAX_SEED: Final = 2**32 - 1
MAX_STOP_STRINGS: Final = 16
MAX_IGNORE_EOS_TOKENS: Final = 4000  # an answer that cannot end by itself
CURRENT_TOP_K: Final = 40


class AnswerFields(BeamFields):
    """The answer's fields, which every body has: how tokens are drawn, and where it ends. None: absent."""

    model: field_types.ModelName = doc(
        "the endpoint that answers, whose name the answer repeats", required=True
    )
    stream: field_types.Stream = None
    min_tokens: field_types.MinTokens = doc(default=0)
    ignore_eos: Flag = doc(
        "continues after the end token", accepts=f"; then up to {MAX_IGNORE_EOS_TOKENS} tokens", default=False
    )
    stop: Annotated[tuple[str, ...] | None, Texts(MAX_STOP_STRINGS, limits.MAX_STOP_CHARS, single=True)] = (
        doc("default none")
    )
    stop_token_ids: field_types.StopTokenIds = doc("default none")
    include_stop_str_in_output: Flag = doc(", in streams too", default=False)

    n: field_types.Choices = doc(
        "this many best ones are the answer",
        accepts="an integer from 1 to `best_of`; of a streamed response 1",
        default=1,
    )
    best_of: field_types.BestOf = doc(
        "a beam search of this width if nothing is drawn, otherwise this many samples",
        accepts=f"an integer from 1 to {OvmsConfig().best_of_limit} (setting `ovms.best_of_limit`)",
        default=1,
    )

    temperature: field_types.Temperature = doc(", greedy (1.0 with `ovms.profile: current`)", default=0.0)
    top_p: field_types.TopP = doc(default=1.0)
    top_k: field_types.TopK = doc(
        ", all; −1 too (40 with `ovms.profile: current`, where 0 is an error)", default=0
    )
    min_p: field_types.MinP = doc(", off (1 is an error with `ovms.profile: current`)", default=0)
    repetition_penalty: field_types.RepetitionPenalty = doc("sees prompt and output", default=1.0)
    presence_penalty: field_types.Penalty = None
    frequency_penalty: field_types.Penalty = None
    logit_bias: field_types.LogitBias = doc("default none")
    logits_processors: field_types.LogitsProcessors = doc(
        "default none; processors that the operator registered"
    )
    seed: Annotated[int | None, Integer(0, MAX_SEED)] = doc(
        ": equal requests are answered equally (drawn anew with `ovms.profile: current`)", default=0
    )

    truncate_prompt_tokens: field_types.TruncatePrompt = None
    skip_special_tokens: Flag = doc(default=True)
    # Changes nothing: texts are the tokens' own bytes, and no space is ever put between them.
    spaces_between_special_tokens: Flag = doc("accepted, no effect: no space is ever put between tokens")
    response_format: Annotated[Any, Described(ResponseFormat), Mark.UNANSWERED] = doc(
        "default text; the answer matches",
        accepts=(
            "an object: `type` is text, json_object, json_schema with `json_schema` (a "
            "schema, or one with `name` and `strict`), or one of XGrammar's formats: "
            "const_string, any_text, regex, grammar, sequence, or, tag, triggered_tags, "
            "tags_with_separator, structural_tag"
        ),
    )
    user: field_types.User = None
    use_beam_search: Flag = doc("default by `temperature`", accepts="; true needs `best_of` from 2")
    length_penalty: LengthPenalty = doc("score ÷ length^p, of beams and of samples", default=1.0)
    early_stopping: EarlyStop = doc(default=False)
    num_beam_groups: BeamGroups = doc(accepts=", a divisor of `best_of`", default=1)
    diversity_penalty: DiversityPenalty = doc("between groups", default=1.0)

    def check(self, config: OvmsConfig) -> None:
        """Check combinations of fields. Raises InvalidField."""
        if self.model is None:
            raise InvalidField("model", "is required")
        if self.ignore_eos and not config.is_current and (self.token_limit or 1) > MAX_IGNORE_EOS_TOKENS:
            raise InvalidField(
                self.names.get("max_tokens", "max_tokens"),
                f"must be an integer from 1 to {MAX_IGNORE_EOS_TOKENS} with ignore_eos",
            )
        if config.is_current and self.top_k == 0:
            raise InvalidField("top_k", f"must be -1 or an integer from 1 to {limits.MAX_TOKENS}")
        if config.is_current and self.min_p == 1:
            raise InvalidField("min_p", "must be a number from 0 to below 1")
        self._check_sequences(config)

    def _check_sequences(self, config: OvmsConfig) -> None:
        n, width = self.n or 1, self.width
        if width > config.best_of_limit:
            raise InvalidField("best_of", f"must be an integer from 1 to {config.best_of_limit}")
        if n > width:
            raise InvalidField("n", f"must be an integer from 1 to best_of, which is {width}")
        if self.use_beam_search and width < 2:
            raise InvalidField("use_beam_search", "needs best_of, from 2")
        if self.is_beam(config):
            if width % (self.num_beam_groups or 1):
                raise InvalidField("num_beam_groups", f"must divide best_of, which is {width}")
            if self.stream:
                raise InvalidField("stream", "not with beam search, which ranks its answers at its end")
        elif self.stream and width > n:
            raise InvalidField("best_of", "must equal n in a stream")

    @property
    def names(self) -> dict[str, str]:
        """The client's names for the fields that a model may complain about."""
        return {**super().names, **beam_names(self.best_of), "beam": "best_of"}

    @property
    def width(self) -> int:
        """The number of sequences that are generated."""
        return self.best_of or 1

    @property
    @abstractmethod
    def token_limit(self) -> int | None:
        """The client's limit on the tokens of an answer."""

    def is_beam(self, config: OvmsConfig) -> bool:
        """Whether `best_of` is the width of a beam search."""
        return self.width > 1 and (bool(self.use_beam_search) or self._temperature(config) == 0)

    def _temperature(self, config: OvmsConfig) -> float:
        if self.temperature is not None:
            return self.temperature
        return 1.0 if config.is_current else 0.0

    def sampling(self, config: OvmsConfig) -> SamplingParams:
        top_k, seed, max_tokens = self.top_k, self.seed, self.token_limit
        if config.is_current:
            top_k = CURRENT_TOP_K if top_k is None else top_k
        else:
            seed = seed or 0  # drawn by a client's wish only: two equal requests are answered equally
            if self.ignore_eos and max_tokens is None:
                max_tokens = MAX_IGNORE_EOS_TOKENS
        return sampling_params(
            self,
            temperature=self._temperature(config),
            top_k=max(top_k or 0, 0),  # -1 also means off
            seed=seed,
            max_tokens=max_tokens,
            processors=self.logits_processors or (),
        )

    def form(self) -> Form:
        """The form of the answer. Raises InvalidField or UnsupportedField."""
        return Form() if self.response_format is None else parse_response_format(self.response_format)

    def options(self, config: OvmsConfig, grammar: Grammar | None) -> dict[str, Any]:
        """The fields of a `GenerateRequest` that have the same meaning in every body.

        Raises InvalidField for an impossible form of the output.
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
            diversity_penalty=penalty if groups > 1 else 0.0,  # there is no other group
        )


class SharedFields(AnswerFields):
    """The fields of chats and completions, except the prompt and the log-probabilities of the answer."""

    stream_options: StreamOptions | None = doc(
        "see its member",
        accepts="an object; only with `stream: true`",
        members={"include_usage": FieldDoc("a last chunk with `usage`, null in the others", default=False)},
    )
    max_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = doc(
        "default up to the window; more than fits is clamped; 4000 with `ignore_eos`"
    )
    max_completion_tokens: field_types.MaxCompletionTokens = None
    prompt_logprobs: field_types.PromptLogprobs = doc(
        "default none; at the top of the answer, by token id", accepts="; not in a stream"
    )
    detokenize: Flag = doc("false sends `token_ids` and no text", default=True)

    def check(self, config: OvmsConfig) -> None:
        super().check(config)
        if self.max_completion_tokens is not None and self.max_tokens not in (
            None,
            self.max_completion_tokens,
        ):
            raise InvalidField("max_tokens", "must equal max_completion_tokens when both are given")
        if self.stream_options is not None and not self.stream:
            raise InvalidField("stream_options", "only allowed when stream is true")
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidField("prompt_logprobs", "cannot be streamed")

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def options(self, config: OvmsConfig, grammar: Grammar | None) -> dict[str, Any]:
        return {**super().options(config, grammar), "prompt_logprobs": self.prompt_logprobs}


def templating_of(variables: Any) -> Templating:
    """`chat_template_kwargs`, which may also contain `add_generation_prompt`. Raises InvalidField."""
    given = dict(variables) if isinstance(variables, dict) else variables
    begins = given.pop("add_generation_prompt", True) if isinstance(given, dict) else True
    if not isinstance(begins, bool):
        raise InvalidField(FIELD, "add_generation_prompt must be true or false")
    return Templating(variables=parse_variables(given), add_generation_prompt=begins)
