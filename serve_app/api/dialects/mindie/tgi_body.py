"""The body of MindIE's `/infer` and of Text Generation Inference's routes: a raw prompt and its parameters.

Depends on no route. The body names no model, only an adapter.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from typing_extensions import TypedDict

from serve_app import limits
from serve_app.api.dialects.chat.field_types import BestOf, Penalty, Stream
from serve_app.api.dialects.chat.response_format.grammar import Form, parse_form
from serve_app.api.dialects.mindie.fields import MAX_INPUT
from serve_app.api.dialects.mindie.generate import MAX_INT, Parameters
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Described, Flag, Integer, Sets, Text
from serve_app.errors import InvalidField, PromptTooLong
from serve_app.types import SamplingParams

DEFAULT_MAX_TOKENS: Final = 20
_NO_ADAPTER: Final = "None"  # as MindIE's examples have it
_FORMS: Final = {"json": "guided_json", "json_schema": "guided_json", "regex": "guided_regex"}


class GrammarForm(TypedDict):
    """The form of the answer; `value` is a JSON Schema or a regular expression."""

    type: Literal["json", "json_schema", "regex"]
    value: dict[str, Any] | str


class ContinueParameters(Parameters):
    """The parameters of the continuation. None: absent."""

    seed: Annotated[int | None, Integer(0, limits.MAX_SEED), Sets("seed")] = doc(
        "default: a new one, drawn at random, which the details contain"
    )
    frequency_penalty: Penalty = doc("sees the output", default=0.0)
    ignore_eos: Flag = doc("continues after the end token", default=False)
    best_of: BestOf = doc("this many are drawn, the likeliest is kept", accepts="; 1 in a stream", default=1)
    truncate: Annotated[int | None, Integer(1, MAX_INT)] = doc(
        "default none; keeps this many last tokens of the prompt"
    )
    return_full_text: Flag = doc("the prompt before the text", default=False)
    decoder_input_details: Annotated[Flag, Sets("prompt_logprobs")] = doc(
        "the prompt's tokens in the details", accepts="; not in a stream", default=False
    )
    top_n_tokens: Annotated[int | None, Integer(0, limits.MAX_LOGPROBS)] = doc(
        "alternatives of each token, of TGI's routes with `details`", default=0
    )
    grammar: Annotated[Any, Described(GrammarForm), Sets("response_format")] = doc(
        "default none; the answer matches", accepts="an object: `type` is json or regex, with its `value`"
    )
    adapter_id: Annotated[str | None, Text(1, limits.MAX_MODEL_NAME_CHARS), Sets("model")] = doc(
        "default none; an adapter of the model"
    )
    details: Annotated[Flag, Sets("logprobs")] = doc(
        "`details` of the answer, and log-probabilities of TGI's tokens", default=False
    )
    do_sample: Flag = doc(
        "default false, greedy (setting `mindie.do_sample_default`: inferred); of TGI's routes inferred from "
        "the other fields"
    )
    max_new_tokens: Annotated[int | None, Integer(1, MAX_INT), Sets("max_tokens")] = doc(
        "more than fits is clamped", default=20
    )
    top_k: Annotated[int | None, Integer(0, MAX_INT), Sets("top_k")] = doc(
        ", off; needs `do_sample`", default=0
    )
    batch_size: Annotated[int | None, Integer(1, MAX_INT)] = doc("a hint that changes no token")
    perf_stat: Flag = doc("checked, no effect: events report their times anyway")

    def check(self, *, stream: bool) -> None:
        """Check combinations of fields. Raises InvalidField."""
        self.check_stop("parameters.stop")
        if (self.best_of or 1) > 1 and stream:
            raise InvalidField("parameters.best_of", "must be 1 in a stream")
        if self.decoder_input_details and stream:
            raise InvalidField("parameters.decoder_input_details", "must not be true in a stream")

    @property
    def shows_details(self) -> bool:
        return bool(self.details or self.decoder_input_details)

    @property
    def adapter(self) -> str | None:
        return None if self.adapter_id == _NO_ADAPTER else self.adapter_id

    def form(self) -> Form:
        """The form of the answer. Raises InvalidField or UnsupportedField."""
        if self.grammar is None:
            return Form()
        known = self.grammar if isinstance(self.grammar, dict) else {}
        kind, value = known.get("type"), known.get("value")
        name = _FORMS.get(kind) if isinstance(kind, str) else None
        if name is None or value is None:
            raise InvalidField("parameters.grammar", "must have a type of json or regex, and a value")
        try:
            return parse_form({name: value})
        except InvalidField as error:
            raise error.renamed("parameters.grammar") from error

    def drawn(self, *, infer: bool, sees_prompt: bool) -> SamplingParams:
        """How tokens are drawn. An absent seed is replaced by a random one, which the details can report.

        `infer`: without `do_sample`, tokens are sampled if any sampling field is set.
        `sees_prompt`: whether the repetition penalty counts the prompt's tokens.
        """
        sampling = self.sampling(self.max_new_tokens or DEFAULT_MAX_TOKENS, self.top_k or 0)
        sampling = replace(sampling, repetition_sees_prompt=sees_prompt)
        if self.samples(infer=infer):
            return replace(sampling, seed=secrets.randbits(63) if self.seed is None else self.seed)
        return replace(sampling, temperature=0.0, top_k=0, top_p=1.0, typical_p=1.0)


class ContinueBody(WireModel):
    """A prompt that is to be continued."""

    inputs: Annotated[str | None, Text(1, limits.MAX_PROMPT_CHARS), Sets("prompt")] = doc(
        "goes to the model raw", accepts=MAX_INPUT, required=True
    )
    stream: Stream = doc("of `/infer` and `/`: an event a token", default=False)
    parameters: ContinueParameters | None = doc("default empty; its members follow", accepts="an object")

    def prompt(self, max_chars: int) -> str:
        """Raises InvalidField or PromptTooLong."""
        if self.inputs is None:
            raise InvalidField("inputs", "is required")
        if len(self.inputs) > max_chars:
            raise PromptTooLong("inputs", f"must be a string of 1 to {max_chars} characters")
        return self.inputs
