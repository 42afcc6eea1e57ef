"""The completion task of Databricks' Foundation Model API.

A prompt becomes one user message in the model's chat template, unless a raw prompt is asked for.
`suffix` is literal text that is appended to the completion; the model does not see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final

from serve_app import limits
from serve_app.api.dialects.chat import shapes
from serve_app.api.dialects.chat.answers import LegacyLogprobs as ListedLogprobs
from serve_app.api.dialects.chat.finish import FINISH
from serve_app.api.dialects.chat.legacy_logprobs import LegacyLogprobs
from serve_app.api.dialects.chat.prompts import parse_prompts
from serve_app.api.dialects.chat.wire import STREAM_TYPE, encode
from serve_app.api.dialects.databricks import answers
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.dialects.databricks.fields import GenerationFields, RouteContext, parse_fields
from serve_app.api.dialects.databricks.renderer import Renderer, usage_fields
from serve_app.api.protocol.dialect import Call, Choice
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Described, Flag, Integer, Mark, OneOf, Sets, Text
from serve_app.endpoints.endpoint import Endpoint, Kind, Task
from serve_app.errors import InvalidField
from serve_app.types import GenerateRequest, ModelInfo, Overflow, Prompt, TextLogprob, TokenDelta, Usage

MAX_LOGPROBS: Final = 5
_OVERFLOW: Final[Mapping[str | None, Overflow]] = {"truncate": Overflow.TRUNCATE, "error": Overflow.ERROR}


class CompletionBody(GenerationFields):
    """A completion request; `check` tests combinations of fields."""

    task: ClassVar[Task] = Task.COMPLETIONS

    prompt: Annotated[Any, Described(shapes.PromptTexts), Mark.UNANSWERED, Sets("messages")] = doc(
        "a list is a batch; choice `index` is prompt × n + i",
        accepts=f"a string or a list of 1 to {limits.MAX_PROMPTS} strings",
        required=True,
    )
    error_behavior: Annotated[str | None, OneOf(("truncate", "error"))] = doc(
        "default error; truncate shortens what does not fit and answers what there is at the deadline",
        accepts="truncate or error; on pay-per-token endpoints only",
    )
    suffix: Annotated[str | None, Text(0, limits.MAX_PROMPT_CHARS)] = doc(
        "default empty; literal text after every completion"
    )
    echo: Flag = doc("the prompt goes before the completion", default=False)
    use_raw_prompt: Flag = doc(": the prompt is a user's message of the template; true: raw", default=False)
    logprobs: Annotated[int | None, Integer(0, MAX_LOGPROBS)] = doc(
        "default none; four lists, with this many alternatives for each token"
    )

    def check(self, endpoint: Endpoint, *, stream: bool) -> None:
        """Raises InvalidField."""
        super().check(endpoint, stream=stream)
        if self.error_behavior is not None and endpoint.kind is not Kind.PAY_PER_TOKEN:
            raise InvalidField("error_behavior", "only allowed on a pay-per-token endpoint")

    @property
    def truncates(self) -> bool:
        """Whether prompts that are too long and answers that take too long are cut off instead of failing."""
        return self.error_behavior == "truncate"

    def prompts(self) -> tuple[str, ...]:
        """Raises InvalidField or PromptTooLong."""
        texts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InvalidField(
                "prompt", f"is required and must be a string or a list of 1 to {limits.MAX_PROMPTS} strings"
            )
        return tuple(prompt.text or "" for prompt in parse_prompts(texts))


class CompletionDialect:
    """The dialect of completions, for one request: prompts in, continuations out."""

    stream_type = STREAM_TYPE
    render_error = staticmethod(render_error)

    def __init__(self, target: RouteContext) -> None:
        self._target = target

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField, PromptTooLong or ModelNotFound."""
        body = parse_fields(CompletionBody, raw)
        found = body.endpoint(self._target, endpoint)
        stream = body.streams(self._target, found)
        body.check(found, stream=stream)
        prompts = body.prompts()
        request = GenerateRequest(
            id="",
            model=found.name,
            prompt=Prompt(text=""),
            sampling=body.sampling(body.max_tokens),
            n=body.choices,
            stop=body.stop or (),
            logprobs=body.logprobs,
            # Only tokens that were streamed before the deadline can be in a truncated answer.
            stream=stream or body.truncates,
            reasoning=False,  # the protocol has no place for thoughts but the text
            overflow=_OVERFLOW.get(body.error_behavior, Overflow.OPERATOR),
        )
        return Call(
            model=found.name,
            task=Task.COMPLETIONS,
            user=body.user,
            requests=tuple(replace(request, prompt=Prompt(text=text)) for text in prompts),
            stream=stream,
            timeout_s=None,
            ignored=(),
            renderer=partial(
                CompletionRenderer,
                body=body.for_answer(),
                prompts=prompts if body.echo else ("",) * len(prompts),
            ),
            names=body.names,
            fit=_raw if body.use_raw_prompt else _templated,
        )


def _raw(request: GenerateRequest, info: ModelInfo) -> GenerateRequest:
    return request


def _templated(request: GenerateRequest, info: ModelInfo) -> GenerateRequest:
    """The prompt as a user's message, if the model has a chat template."""
    if not info.has_chat_template:
        return request
    return replace(request, prompt=Prompt(messages=({"role": "user", "content": request.prompt.text or ""},)))


class CompletionRenderer(Renderer):
    """Writes completions and their chunks. A choice's index is prompt * n + i."""

    def __init__(self, id: str, info: ModelInfo, body: CompletionBody, prompts: tuple[str, ...]) -> None:
        """`prompts`: for each prompt, the text that its completions begin with."""
        total = body.choices * len(prompts)
        super().__init__("text_completion", f"cmpl-{id}", info, total, body.include_usage)
        self._body = body
        self._prompts = prompts
        self._suffix = body.suffix or ""
        self._logprobs: dict[int, LegacyLogprobs] = {}

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        index, events = prompt * self._body.choices + delta.index, b""
        if index not in self._begun:
            self._begun.add(index)
            events = self._text(index, self._prompts[prompt])
        events += self._text(index, delta.text, self._listed(index, delta.logprobs))
        if delta.finish is not None:
            events += self._text(index, self._suffix)
            events += self._last(index, self._members("", None), prompt, delta)
        return events

    def _text(self, index: int, text: str, logprobs: ListedLogprobs | None = None) -> bytes:
        if not text and logprobs is None:
            return b""
        return self._piece(index, self._members(text, logprobs))

    def _members(self, text: str, logprobs: ListedLogprobs | None) -> bytes:
        members = b'"text":' + encode(text)
        return members if self._body.logprobs is None else members + b',"logprobs":' + encode(logprobs)

    def _listed(self, index: int, tokens: Iterable[TextLogprob] | None) -> ListedLogprobs | None:
        if self._body.logprobs is None or not tokens:
            return None
        if index not in self._logprobs:
            echoed = len(self._prompts[index // self._body.choices])
            self._logprobs[index] = LegacyLogprobs(self._body.logprobs, offset=echoed)
        return self._logprobs[index].add(tokens)

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        rendered = [self._choice(i, choice) for i, choice in enumerate(choices)]
        usages = usage_fields(usage)
        answer: answers.Completion = {**self._head, "choices": rendered, "usage": usages}
        return encode(answer)

    def _choice(self, index: int, choice: Choice) -> answers.CompletionChoice:
        text = self._prompts[index // self._body.choices] + choice.text + self._suffix
        finish = FINISH[choice.finish] if choice.finish else None
        if self._body.logprobs is None:
            return {"index": index, "text": text, "finish_reason": finish}
        listed = self._listed(index, choice.logprobs)
        return {"index": index, "text": text, "logprobs": listed, "finish_reason": finish}
