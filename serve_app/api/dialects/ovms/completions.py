"""POST /v3/completions of OpenVINO Model Server: a raw prompt in, its continuations out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any

from serve_app import limits
from serve_app.api.dialects.chat import shapes
from serve_app.api.dialects.chat import wire as openai
from serve_app.api.dialects.chat.answers import LegacyLogprobs as ListedLogprobs
from serve_app.api.dialects.chat.finish import FINISH
from serve_app.api.dialects.chat.legacy_logprobs import LegacyLogprobs
from serve_app.api.dialects.chat.prompts import parse_prompts
from serve_app.api.dialects.ovms import answers
from serve_app.api.dialects.ovms.errors import OvmsDialect
from serve_app.api.dialects.ovms.fields import SharedFields
from serve_app.api.dialects.ovms.renderer import Renderer
from serve_app.api.edge.body import parse_body
from serve_app.api.protocol.dialect import Call, Choice
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Described, Flag, Integer, Mark
from serve_app.config import OvmsConfig
from serve_app.endpoints.endpoint import Task
from serve_app.errors import InvalidField
from serve_app.types import GenerateRequest, ModelInfo, Prompt, TextLogprob, TokenDelta


class CompletionBody(SharedFields):
    """A completion request. An answer numbers only choices, not prompts, so a body has only one prompt."""

    prompt: Annotated[
        Any, Described(shapes.PromptText | shapes.TokenIds), Mark.UNANSWERED, Mark.SELF_CHECKED
    ] = doc("goes to the model raw", accepts="one string or one list of token ids", required=True)
    max_tokens: Annotated[int | None, Integer(0, limits.MAX_TOKENS)] = doc(
        "default up to the window; more than fits is clamped; 4000 with `ignore_eos`",
        accepts="; 0 only with `echo`",
    )
    echo: Flag = doc("the prompt goes before the text", default=False)
    logprobs: Annotated[int | None, Integer(0, limits.MAX_LOGPROBS)] = doc(
        "default none; four lists, with this many alternatives for each token"
    )

    def check(self, config: OvmsConfig) -> None:
        super().check(config)
        if self.max_tokens == 0 and not self.echo:
            raise InvalidField(
                "max_tokens", f"must be an integer from 1 to {limits.MAX_TOKENS}, or 0 with echo"
            )

    @property
    def wants_prompt_logprobs(self) -> int | None:
        """If the prompt is echoed, its tokens are listed among the choice's own log-probabilities."""
        if self.echo and self.logprobs is not None:
            return max(self.logprobs, self.prompt_logprobs or 0)
        return self.prompt_logprobs

    def single_prompt(self) -> Prompt:
        """Raises InvalidField or PromptTooLong."""
        prompts = parse_prompts(self.prompt)
        if len(prompts) > 1:
            raise InvalidField("prompt", "must hold one prompt, as text or token ids")
        return prompts[0]


class CompletionDialect(OvmsDialect):
    """Completions: a raw prompt in, continuations out."""

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField or PromptTooLong."""
        body = parse_body(CompletionBody, raw)
        body.check(self._config)
        model = endpoint or body.model or ""
        form = body.form()
        options = {**body.options(self._config, form.grammar), "prompt_logprobs": body.wants_prompt_logprobs}
        request = GenerateRequest(
            id="",
            model=model,
            prompt=body.single_prompt(),
            echo=bool(body.echo),
            logprobs=body.logprobs,
            **options,
        )
        return Call(
            model=model,
            task=Task.COMPLETIONS,
            user=body.user,
            requests=(request,),
            stream=bool(body.stream),
            timeout_s=None,
            shows_ids="detokenize" if body.detokenize is False else None,
            ignored=form.ignored,  # unknown fields are, by this protocol, in silence
            renderer=partial(CompletionRenderer, body=body.for_answer(), model=model),
            names=body.names,
        )


class CompletionRenderer(Renderer):
    """Writes completions and their chunks."""

    _body: CompletionBody

    def __init__(self, id: str, info: ModelInfo, body: CompletionBody, model: str) -> None:
        super().__init__("text_completion", f"cmpl-{id}", model, info, body)
        self._logprobs: dict[int, LegacyLogprobs] = {}

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        text = (delta.prompt_text or "") + delta.text if self._is_text else ""
        logprobs = self._listed(delta.index, delta.prompt_logprobs, delta.logprobs)
        ids = () if self._is_text else delta.token_ids
        if not text and not ids and logprobs is None and delta.finish is None:
            return b""
        content = b'"text":' + openai.encode(text)
        if not self._is_text:
            content = b'"token_ids":' + openai.encode(ids) + b"," + content
        finish = None if delta.finish is None else FINISH[delta.finish]
        return self._piece(delta.index, content, finish=finish, logprobs=logprobs)

    def _listed(
        self, index: int, prompt: tuple[TextLogprob, ...] | None, output: Iterable[TextLogprob] | None
    ) -> ListedLogprobs | None:
        """The choice's next log-probabilities, if the client asked for them and there are any."""
        if self._body.logprobs is None:
            return None
        tokens = [*((prompt or ()) if self._body.echo else ()), *(output or ())]
        if not tokens:
            return None
        return self._logprobs.setdefault(index, LegacyLogprobs(self._body.logprobs)).add(tokens)

    def _choice(self, index: int, choice: Choice) -> answers.CompletionChoice:
        finish = FINISH[choice.finish] if choice.finish else None
        listed, ids = self._listed(index, choice.prompt_logprobs, choice.logprobs), choice.token_ids
        if not self._is_text:
            return {"finish_reason": finish, "index": index, "logprobs": listed, "token_ids": ids, "text": ""}
        text = (choice.prompt_text or "") + choice.text
        return {"finish_reason": finish, "index": index, "logprobs": listed, "text": text}
