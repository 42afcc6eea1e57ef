"""POST /v2/models/{model}[/versions/{version}]/generate and generate_stream of MindIE.

A raw prompt and its continuation, one event for each token. Depends on no route: its
creator passes the model that the path names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Final

from serve_app import limits
from serve_app.api.dialects.chat.field_types import RepetitionPenalty, Stop, TopP, TypicalP
from serve_app.api.dialects.mindie.errors import render_error
from serve_app.api.dialects.mindie.events import AnswerForm, TextRenderer
from serve_app.api.dialects.mindie.fields import (
    MAX_ALL_STOP_CHARS,
    MAX_INPUT,
    MAX_TIMEOUT_S,
    SharedFields,
    fit_output,
)
from serve_app.api.dialects.mindie.wire import STREAM_TYPE
from serve_app.api.edge.body import WireModel, parse_body
from serve_app.api.protocol.dialect import Call
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Flag, Integer, Number, Sets, Text
from serve_app.config import MindieConfig
from serve_app.endpoints.endpoint import Task
from serve_app.errors import InvalidField, PromptTooLong
from serve_app.types import GenerateRequest, ModelInfo, Overflow, Prompt, SamplingParams

DEFAULT_MAX_TOKENS: Final = 20
MAX_FLOAT: Final = 3.4e38  # the engine's numbers are float32
MAX_INT: Final = 2**31 - 1

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")


class Parameters(SharedFields):
    """The parameters of the continuation. None: absent."""

    details: Flag = doc("`details` in every event", default=False)
    do_sample: Flag = doc(", greedy (setting `mindie.do_sample_default`: inferred)", default=False)
    max_new_tokens: Annotated[int | None, Integer(1, MAX_INT), Sets("max_tokens")] = doc(
        ", or `maxIterTimes` where that is less", accepts=", up to the model's `maxIterTimes`", default=20
    )
    repetition_penalty: RepetitionPenalty = doc(
        "sees prompt and output (setting `mindie.repetition_penalty_scope`)", default=1.0
    )
    temperature: Annotated[float | None, Number(0, MAX_FLOAT, above=True)] = doc(
        "needs `do_sample`", default=1.0
    )
    top_k: Annotated[int | None, Integer(0, MAX_INT), Sets("top_k")] = doc(
        ", off; needs `do_sample`", accepts=", below the size of the vocabulary", default=0
    )
    typical_p: TypicalP = doc("default off; needs `do_sample`")
    batch_size: Annotated[int | None, Integer(1, MAX_INT)] = doc(
        "a hint that changes no token; events report the real one"
    )
    watermark: Flag = doc("green-list bias, greedy or not", default=False)
    perf_stat: Flag = doc("with `details`, the costs of every token", default=False)
    timeout: Annotated[int | None, Integer(1, MAX_TIMEOUT_S)] = doc("seconds; default the operator's")
    seed: Annotated[int | None, Integer(1, limits.MAX_SEED), Sets("seed")] = doc(
        "default drawn anew; needs `do_sample`"
    )
    top_p: TopP = doc("needs `do_sample`", default=1.0)
    stop: Annotated[Stop, Sets("stop")] = doc(
        "default none", accepts=f"; {MAX_ALL_STOP_CHARS} characters in all"
    )

    def samples(self, *, infer: bool) -> bool:
        """Whether tokens are sampled. With `infer`, other fields decide this if `do_sample` is absent."""
        if self.do_sample is None and infer:
            named = (self.temperature, self.top_k, self.top_p, self.typical_p, self.seed)
            return any(value is not None for value in named)
        return bool(self.do_sample)


class TextBody(WireModel):
    """A generate request."""

    id: Annotated[str | None, Text(1, limits.MAX_HEADER_ID_CHARS)] = doc(
        "default the header `X-Request-Id`, else made; repeated in every event", accepts=" of A-Z a-z 0-9 _ -"
    )
    text_input: Annotated[str | None, Text(1, limits.MAX_PROMPT_CHARS), Sets("prompt")] = doc(
        "goes to the model raw", accepts=MAX_INPUT, required=True
    )
    parameters: Parameters | None = doc("default empty; its members follow", accepts="an object")

    def check(self, max_chars: int) -> None:
        """Check combinations of fields. Raises InvalidField or PromptTooLong."""
        check_id(self.id)
        if self.text_input is None:
            raise InvalidField("text_input", "is required")
        if len(self.text_input) > max_chars:
            raise PromptTooLong("text_input", f"must be a string of 1 to {max_chars} characters")


def check_id(id: str | None) -> None:
    """Raises InvalidField for a malformed id; the id may be absent."""
    if id is not None and not _ID.fullmatch(id):
        raise InvalidField("id", "must be 1 to 256 characters of A-Z a-z 0-9 _ -")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTarget:
    """The facts about a request that are known before its body is read."""

    model: str  # as the path names it
    version: str | None
    id: str  # unless the body brings one
    stream: bool


class TextDialect:
    """The dialect of text, for one request: a prompt in, its continuation out."""

    stream_type = STREAM_TYPE
    render_error = staticmethod(render_error)

    def __init__(self, config: MindieConfig, target: TextTarget) -> None:
        self._config = config
        self._target = target

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField or PromptTooLong."""
        body = parse_body(TextBody, raw)
        body.check(self._config.max_input_chars)
        asked = body.parameters or Parameters()
        asked.check_stop("parameters.stop")
        target, details = self._target, bool(asked.details)
        request = GenerateRequest(
            id="",
            model=target.model,
            prompt=Prompt(text=body.text_input),
            sampling=self._sampling(asked),
            stop=asked.stop or (),
            stream=target.stream or details,  # the details are of each token
            per_token=target.stream or details,
            overflow=Overflow.WINDOW,
            priority=asked.engine_priority,
        )
        answer = AnswerForm(
            id=body.id or target.id,
            model_name=target.model,
            model_version=target.version,
            details=details,
            perf_stat=details and bool(asked.perf_stat),
            shows_end=self._config.emit_end_token_text,
        )
        return Call(
            model=target.model,
            task=Task.COMPLETIONS,
            version=target.version,
            client_id=answer.id,
            requests=(request,),
            stream=target.stream,
            timeout_s=asked.timeout,
            shows_ids="parameters.perf_stat" if answer.perf_stat else None,
            ignored=(),  # by this protocol in silence
            renderer=partial(TextRenderer, answer=answer),
            names=body.names,
            fit=partial(self._fit, top_k=asked.top_k, is_default=asked.max_new_tokens is None),
        )

    def _sampling(self, asked: Parameters) -> SamplingParams:
        sampling = asked.sampling(asked.max_new_tokens or DEFAULT_MAX_TOKENS, asked.top_k or 0)
        if self._config.repetition_penalty_scope == "generated":
            sampling = replace(sampling, repetition_sees_prompt=False)
        if asked.samples(infer=self._config.do_sample_default == "auto"):
            return sampling
        return replace(sampling, temperature=0.0, top_k=0, top_p=1.0, typical_p=1.0, seed=None)

    def _fit(
        self, request: GenerateRequest, info: ModelInfo, *, top_k: int | None, is_default: bool
    ) -> GenerateRequest:
        """Raises InvalidField for values outside of the model's own ranges."""
        if top_k is not None and top_k >= info.vocab_size:
            raise InvalidField("top_k", f"must be an integer from 0 to {info.vocab_size - 1}")
        return fit_output(request, info, clamp=is_default or self._config.clamp_max_tokens)
