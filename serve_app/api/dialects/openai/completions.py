"""POST /v1/completions of the OpenAI protocol."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Final

from serve_app import limits
from serve_app.api.dialects.chat import shapes, wire
from serve_app.api.dialects.chat.answers import LegacyLogprobs as ListedLogprobs
from serve_app.api.dialects.chat.fields import SharedFields
from serve_app.api.dialects.chat.finish import FINISH
from serve_app.api.dialects.chat.legacy_logprobs import LegacyLogprobs
from serve_app.api.dialects.chat.prompts import parse_prompts
from serve_app.api.dialects.openai import answers
from serve_app.api.dialects.openai.errors import broken, render_error
from serve_app.api.dialects.openai.wire import head, stop_member, stop_reason, usage_chunk, usage_fields
from serve_app.api.edge.body import parse_body
from serve_app.api.protocol.dialect import Call, Choice
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Described, Flag, Integer, Mark, Text
from serve_app.endpoints.endpoint import Task
from serve_app.errors import InvalidField, ServeError
from serve_app.types import GenerateRequest, ModelInfo, Overflow, Prompt, TokenDelta, Usage

DEFAULT_MAX_TOKENS: Final = 16


class CompletionBody(SharedFields):
    prompt: Annotated[Any, Described(shapes.Prompts), Mark.UNANSWERED, Mark.SELF_CHECKED] = doc(
        "goes to the model raw; a list is a batch",
        accepts=f"a string, token ids, or a list of up to {limits.MAX_PROMPTS} of either",
        required=True,
    )
    suffix: Annotated[str | None, Text(0, limits.MAX_PROMPT_CHARS), Mark.UNANSWERED] = doc(
        "default none; fill-in-the-middle, an error of models without it", accepts="; needs text prompts"
    )
    max_tokens: Annotated[int | None, Integer(0, limits.MAX_TOKENS)] = doc(
        "more than fits is clamped", accepts="; 0 only with `echo`", default=16
    )
    logprobs: Annotated[int | None, Integer(0, limits.MAX_LOGPROBS)] = doc(
        "default none; four lists, with this many alternatives for each token"
    )
    echo: Flag = doc("the prompt goes before the text, and into `logprobs`", default=False)

    def check(self) -> None:
        super().check()
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


class CompletionDialect:
    """The dialect of completions: raw prompts in, continuations out."""

    stream_type = wire.STREAM_TYPE
    render_error = staticmethod(render_error)

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField or PromptTooLong."""
        body = parse_body(CompletionBody, raw)
        body.check()
        model = body.endpoint(endpoint)
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        form = body.form()
        sampling, options = body.sampling(max_tokens), body.options(form.grammar)
        requests = tuple(
            GenerateRequest(
                id="",
                model=model,
                prompt=_with_suffix(prompt, body.suffix),
                sampling=sampling,
                echo=bool(body.echo),
                logprobs=body.logprobs,
                prompt_logprobs=body.wants_prompt_logprobs,
                # A length that the client did not ask for is never too long.
                overflow=Overflow.CLAMP if body.max_tokens is None else Overflow.OPERATOR,
                **options,
            )
            for prompt in parse_prompts(body.prompt)
        )
        return Call(
            model=model,
            task=Task.COMPLETIONS,
            user=body.user,
            requests=requests,
            stream=bool(body.stream),
            timeout_s=body.timeout,
            shows_ids="return_token_ids" if body.return_token_ids else None,
            tells_filtered=True,
            ignored=(*body.ignored, *form.ignored),
            renderer=partial(CompletionRenderer, body=body.for_answer()),
            names=body.names,
        )


def _with_suffix(prompt: Prompt, suffix: str | None) -> Prompt:
    if not suffix:
        return prompt
    if prompt.text is None:
        raise InvalidField("suffix", "needs prompts that are text")
    return Prompt(text=prompt.text, suffix=suffix)


class CompletionRenderer:
    """Writes completions and their chunks. A choice's index is prompt * n + i."""

    def __init__(self, id: str, info: ModelInfo, body: CompletionBody) -> None:
        self._head = head("text_completion", f"cmpl-{id}", info)
        self._body = body
        self._n = body.n or 1
        self._open = b"data: " + wire.encode(self._head)[:-1] + b',"choices":[{"index":'
        self._end = wire.chunk_end(include_usage=body.include_usage)
        self._usage: dict[int, Usage] = {}  # so far, of each prompt
        self._logprobs: dict[int, LegacyLogprobs] = {}

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        index = prompt * self._n + delta.index
        text = (delta.prompt_text or "") + delta.text
        logprobs = self._delta_logprobs(index, delta)
        ids = self._token_ids(delta) if self._body.return_token_ids else b""
        if not text and not ids and logprobs is None and delta.finish is None:
            return b""
        reason = b"null" if delta.finish is None else b'"%b"' % FINISH[delta.finish].encode()
        return b'%b%d,"text":%b,"logprobs":%b,"finish_reason":%b%b%b%b' % (
            self._open,
            index,
            wire.encode(text),
            b"null" if logprobs is None else wire.encode(logprobs),
            reason,
            stop_member(delta.finish, delta.stop),
            ids,
            self._end if not self._body.continuous_usage else self._end_with(prompt, delta.usage),
        )

    def _end_with(self, prompt: int, usage: Usage) -> bytes:
        """The end of a chunk that reports the usage of all prompts so far."""
        self._usage[prompt] = usage
        return wire.chunk_end_with(Usage.total(self._usage.values()))

    def _token_ids(self, delta: TokenDelta) -> bytes:
        """The members with a chunk's token ids and, in a choice's first chunk, the prompt's token ids."""
        prompt, ids = delta.prompt_token_ids, delta.token_ids
        members = b"" if prompt is None else b',"prompt_token_ids":' + wire.encode(prompt)
        return members + (b',"token_ids":' + wire.encode(ids) if ids else b"")

    def _delta_logprobs(self, index: int, delta: TokenDelta) -> ListedLogprobs | None:
        if self._body.logprobs is None:
            return None
        prompt = (delta.prompt_logprobs or ()) if self._body.echo else ()
        tokens = (*prompt, *(delta.logprobs or ()))
        if not tokens:
            return None
        if index not in self._logprobs:
            self._logprobs[index] = self._new_logprobs(self._body.logprobs)
        return self._logprobs[index].add(tokens)

    def _new_logprobs(self, num_top: int) -> LegacyLogprobs:
        return LegacyLogprobs(num_top, by_id=bool(self._body.return_tokens_as_token_ids))

    def end(self, usage: Usage) -> bytes:
        return (usage_chunk(self._head, usage) if self._body.include_usage else b"") + wire.DONE

    def broken(self, error: ServeError) -> bytes:
        return broken(error)

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        rendered = [self._choice(i, choice) for i, choice in enumerate(choices)]
        usages = usage_fields(usage)
        answer: answers.Completion = {**self._head, "choices": rendered, "usage": usages}
        return wire.encode(answer)

    def _choice(self, index: int, choice: Choice) -> answers.CompletionChoice:
        logprobs = None
        if self._body.logprobs is not None:
            prompt = (choice.prompt_logprobs or ()) if self._body.echo else ()
            logprobs = self._new_logprobs(self._body.logprobs).add((*prompt, *choice.logprobs))
        fields: answers.CompletionChoice = {
            "index": index,
            "text": (choice.prompt_text or "") + choice.text,
            "logprobs": logprobs,
            "finish_reason": FINISH[choice.finish] if choice.finish else None,
        }
        if (reason := stop_reason(choice.finish, choice.stop)) is not None:
            fields["stop_reason"] = reason
        if self._body.prompt_logprobs is not None:
            fields["prompt_logprobs"] = wire.prompt_entries(choice.prompt_logprobs or ())
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = choice.prompt_token_ids
            fields["token_ids"] = choice.token_ids
        return fields
