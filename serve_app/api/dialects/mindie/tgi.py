"""POST /infer of MindIE; POST /generate, /generate_stream and / of Text Generation Inference (TGI).

These requests name no model, so they go to the caller's first endpoint that generates text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from starlette.types import Receive, Scope, Send

from serve_app.api.dialects.mindie.errors import render_error
from serve_app.api.dialects.mindie.tgi_body import ContinueBody, ContinueParameters
from serve_app.api.dialects.mindie.tgi_renderers import (
    ContinueForm,
    InferRenderer,
    ListRenderer,
    TgiRenderer,
)
from serve_app.api.dialects.mindie.wire import STREAM_TYPE
from serve_app.api.edge.body import parse_body
from serve_app.api.exchange.generate import GenerateExchange
from serve_app.api.protocol.dialect import Call, Renderer
from serve_app.api.services import Services
from serve_app.config import MindieConfig
from serve_app.endpoints.endpoint import Task
from serve_app.types import GenerateRequest, ModelInfo, Overflow, Prompt

_RENDERERS = {"infer": InferRenderer, "tgi": TgiRenderer, "list": ListRenderer}


@dataclass(frozen=True, slots=True)
class ContinueTarget:
    """How one route answers. If `stream` is None, the body decides."""

    form: str  # of a whole answer: infer, tgi or list
    stream: bool | None = None


class ContinueDialect:
    """The dialect of these routes, for one request: a prompt in, its continuation out."""

    stream_type = STREAM_TYPE
    render_error = staticmethod(render_error)

    def __init__(self, config: MindieConfig, target: ContinueTarget, endpoint: str) -> None:
        self._config, self._target, self._endpoint = config, target, endpoint

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField, UnsupportedField or PromptTooLong."""
        body = parse_body(ContinueBody, raw)
        prompt = body.prompt(self._config.max_input_chars)
        asked = body.parameters or ContinueParameters()
        stream = bool(body.stream) if self._target.stream is None else self._target.stream
        asked.check(stream=stream)
        form, details = asked.form(), asked.shows_details
        is_tgi = self._target.form != "infer"
        sampling = asked.drawn(
            infer=is_tgi or self._config.do_sample_default == "auto",
            sees_prompt=self._config.repetition_penalty_scope == "all",
        )
        request = GenerateRequest(
            id="",
            model=self._endpoint,
            prompt=Prompt(text=prompt),
            sampling=sampling,
            stop=asked.stop or (),
            best_of=asked.best_of,
            logprobs=(asked.top_n_tokens or 0) if details and is_tgi else None,
            prompt_logprobs=0 if asked.decoder_input_details else None,
            truncate_prompt=asked.truncate,
            grammar=form.grammar,
            stream=stream,
            per_token=stream,
            # A length that the client did not ask for is never too long.
            overflow=Overflow.CLAMP if asked.max_new_tokens is None else Overflow.OPERATOR,
            priority=asked.engine_priority,
            reasoning=False,  # the protocol has no place for thoughts but the text
        )
        answer = ContinueForm(
            details=details,
            seed=sampling.seed,
            prompt=prompt if asked.return_full_text else "",
            num_top=asked.top_n_tokens or 0,
        )
        return Call(
            model=self._endpoint if asked.adapter is None else f"{self._endpoint}:{asked.adapter}",
            task=Task.COMPLETIONS,
            requests=(request,),
            stream=stream,
            timeout_s=asked.timeout,
            # Every event has its token's id, and so have the details.
            shows_ids="stream" if stream else "parameters.details" if details else None,
            ignored=form.ignored,
            renderer=partial(self._renderer, answer=answer),
            names=body.names,
        )

    def _renderer(self, id: str, info: ModelInfo, answer: ContinueForm) -> Renderer:
        return _RENDERERS[self._target.form](info, answer)


class ContinueRoute:
    """An ASGI app for one of these routes."""

    def __init__(self, services: Services, target: ContinueTarget) -> None:
        self._services, self._target = services, target

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ServeError only before the answer's first byte, but ClientGone at any time."""
        endpoint = self._services.endpoints(scope).first_generating() or ""
        dialect = ContinueDialect(self._services.config.mindie, self._target, endpoint)
        await GenerateExchange(dialect, self._services, scope, receive, send).run()
