"""POST /v1/chat/completions of the OpenAI protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from msgspec import structs
from pydantic import Field

from serve_app import limits
from serve_app.api.dialects.chat import field_types, wire
from serve_app.api.dialects.chat.custom_tools import HeldCalls
from serve_app.api.dialects.chat.fields import SharedFields
from serve_app.api.dialects.chat.finish import FINISH, LEGACY_TOOL_CALLS
from serve_app.api.dialects.chat.messages import MAX_NAME_CHARS, MAX_TOOL_CALLS, parse_messages
from serve_app.api.dialects.chat.templating import EFFORTS, TemplatingFields, with_effort
from serve_app.api.dialects.chat.thinking_budget import ThinkingTokenBudget
from serve_app.api.dialects.chat.tools import ToolOffer, parse_offer
from serve_app.api.dialects.openai import answers
from serve_app.api.dialects.openai import shapes as own_shapes
from serve_app.api.dialects.openai import wire as own_wire
from serve_app.api.dialects.openai.errors import broken, render_error
from serve_app.api.edge.body import parse_body
from serve_app.api.protocol.dialect import Call, Choice
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import Described, Flag, Integer, Mark, OneOf, Sets, checked, refusal
from serve_app.endpoints.endpoint import Task
from serve_app.errors import InvalidField, ServeError
from serve_app.limits import MAX_DOCUMENTS
from serve_app.types import (
    FinishReason,
    GenerateRequest,
    ModelInfo,
    Prompt,
    Templating,
    TextLogprob,
    TokenDelta,
    Usage,
)


def _documents(value: Any) -> tuple[dict[str, str], ...]:
    """The documents that an answer is to draw on, for templates that show them to the model."""
    texts = isinstance(value, list) and all(
        isinstance(each, dict) and all(isinstance(text, str) for text in each.values()) for each in value
    )
    if not texts or len(value) > MAX_DOCUMENTS:
        raise refusal(f"must be a list of up to {MAX_DOCUMENTS} objects of strings, such as title and text")
    return tuple(value)


Documents: Final = checked(_documents, Annotated[list[dict[str, str]], Field(max_length=MAX_DOCUMENTS)])


_PLAIN: Final = b'},"logprobs":null,"finish_reason":null'  # after the content of a choice


class ChatBody(SharedFields, TemplatingFields):
    messages: Annotated[Any, Described(own_shapes.Messages), Mark.UNANSWERED, Sets("prompt")] = doc(
        "any order of roles",
        accepts=f"a list of 1 to {limits.MAX_MESSAGES} messages",
        members={
            "role": FieldDoc(
                "developer counts as system, function as tool",
                accepts="system, developer, user, assistant, tool or function",
            ),
            "content": FieldDoc(
                "parts are joined by line breaks; null only beside calls",
                accepts=f"a string or a list of up to {limits.MAX_CONTENT_PARTS} text parts",
            ),
            "tool_calls": FieldDoc(
                "earlier calls, of custom tools too, given to the template",
                accepts=f"a list of up to {MAX_TOOL_CALLS} calls; of an assistant",
            ),
            "tool_call_id": FieldDoc(
                "the call that is answered",
                accepts=f"a string of 1 to {MAX_NAME_CHARS} characters; required of role tool",
            ),
        },
        required=True,
    )
    max_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = doc(
        "default the model's, else up to the window; more than fits is clamped"
    )
    max_completion_tokens: field_types.MaxCompletionTokens = None
    logprobs: field_types.Logprobs = None
    top_logprobs: field_types.TopLogprobs = None
    tools: Annotated[Any, Described(own_shapes.Tools), Mark.UNANSWERED] = doc(
        "default none; the model may call them",
        accepts=f"a list of up to {limits.MAX_TOOLS} function and custom tools",
        members={
            "custom.format": FieldDoc(
                "default text; forced calls match the regular expression or the Lark grammar; with calls "
                "that are not forced it is ignored and listed",
                accepts="an object: `type` is text or grammar; then `grammar` has `syntax` and `definition`",
            )
        },
    )
    tool_choice: Annotated[Any, Described(own_shapes.ToolChoice)] = doc(
        "default auto; required and a name force a call",
        accepts="none, auto, required, an object that names a tool, or allowed_tools",
    )
    parallel_tool_calls: field_types.ParallelToolCalls = None
    functions: field_types.Functions = None
    function_call: field_types.FunctionCall = None
    reasoning_effort: Annotated[str | None, OneOf(EFFORTS)] = doc(
        "variable `reasoning_effort` of the model's template; none also sets `enable_thinking` to false"
    )
    thinking_token_budget: ThinkingTokenBudget = None
    include_reasoning: Flag = doc("false leaves `reasoning_content` out of the answer", default=True)
    documents: Annotated[tuple[dict[str, str], ...] | None, Documents, Mark.UNANSWERED] = doc(
        "default none; given to the model's template; an error where it shows none",
        accepts=f"a list of up to {limits.MAX_DOCUMENTS} objects of strings, such as `title` and `text`",
    )

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise InvalidField("top_logprobs", "only allowed when logprobs is true")
        limits_given = {v for v in (self.max_tokens, self.max_completion_tokens) if v is not None}
        if len(limits_given) > 1:
            raise InvalidField("max_tokens", "must equal max_completion_tokens when both are given")

    def offer(self) -> ToolOffer:
        """The tools, in either form. Raises InvalidField."""
        return parse_offer(
            tools=self.tools,
            tool_choice=self.tool_choice,
            functions=self.functions,
            function_call=self.function_call,
            parallel=self.parallel_tool_calls is not False,
            subset=True,
            is_openai=True,
        )

    def templating(self) -> Templating:
        """As `TemplatingFields.templating`, with `reasoning_effort` and documents."""
        templating = with_effort(super().templating(), self.reasoning_effort)
        return replace(templating, documents=self.documents or ())

    @property
    def left_to_model(self) -> tuple[str, ...]:
        """As `SharedFields.left_to_model`, with the length if it is not set."""
        return super().left_to_model + (("max_tokens",) if self.token_limit is None else ())

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class ChatDialect:
    """Chat: messages in, assistant messages out."""

    stream_type = wire.STREAM_TYPE
    render_error = staticmethod(render_error)

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody or InvalidField."""
        body = parse_body(ChatBody, raw)
        body.check()
        model = body.endpoint(endpoint)
        offer, form = body.offer(), body.form()
        request = GenerateRequest(
            id="",
            model=model,
            prompt=Prompt(
                messages=parse_messages(body.messages, customs=True),
                tools=offer.tools,
                templating=body.templating(),
            ),
            tool_choice=offer.choice,
            sampling=body.sampling(body.token_limit),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            thinking_tokens=body.thinking_token_budget,
            prompt_logprobs=body.prompt_logprobs,
            **body.options(form.grammar),
        )
        return Call(
            model=model,
            task=Task.CHAT,
            user=body.user,
            requests=(request,),
            stream=bool(body.stream),
            timeout_s=body.timeout,
            shows_ids="return_token_ids" if body.return_token_ids else None,
            tells_filtered=True,
            ignored=(*body.ignored, *form.ignored, *offer.ignored),
            renderer=partial(
                ChatRenderer, body=body.for_answer(), legacy=offer.legacy, customs=offer.customs
            ),
            names={**offer.names, **body.names},
        )


class ChatRenderer:
    """Writes chat completions and their chunks."""

    def __init__(
        self,
        id: str,
        info: ModelInfo,
        body: ChatBody,
        legacy: bool = False,
        customs: frozenset[str] = frozenset(),
    ) -> None:
        """`legacy`: a call is sent as the deprecated `function_call`. `customs`: tools that take a text."""
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._head = own_wire.head(kind, f"chatcmpl-{id}", info)
        self._body = body
        self._legacy = legacy
        self._customs = customs
        self._held = HeldCalls(customs) if customs else None
        self._open: dict[int, bytes] = {}  # a choice's chunks up to their delta's content
        self._end = wire.chunk_end(include_usage=body.include_usage)
        self._plain = _PLAIN + self._end

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        index = delta.index
        opening = self._open.get(index)
        end, plain = self._end, self._plain
        if self._body.continuous_usage:
            end = wire.chunk_end_with(delta.usage)
            plain = _PLAIN + end
        if self._body.include_reasoning is False and delta.reasoning:
            delta = structs.replace(delta, reasoning="")
        events = b""
        if opening is None:
            start = b"data: " + wire.encode(self._head)[:-1] + b',"choices":[{"index":%d,"delta":{' % index
            tail = plain
            if self._body.return_token_ids:
                tail = _PLAIN + wire.with_prompt_ids(end, delta.prompt_token_ids or ())
            events = start + b'"role":"assistant","content":""' + tail
            opening = self._open[index] = start
        tail = plain
        logprobs = delta.logprobs if self._body.logprobs else None
        ids = delta.token_ids if self._body.return_token_ids else ()
        if logprobs or ids:
            listed = wire.encode(self._logprobs(logprobs)) if logprobs else b"null"
            member = b',"token_ids":' + wire.encode(ids) if ids else b""
            tail = b'},"logprobs":' + listed + b',"finish_reason":null' + member + end
        members = wire.delta_members(delta, legacy=self._legacy, always=tail is not plain, customs=self._held)
        for content in members:
            events += opening + content + tail
            tail = plain  # what belongs to the whole step is sent once
        if delta.finish is not None:
            reason = self._finish(delta.finish).encode()
            stop = own_wire.stop_member(delta.finish, delta.stop)
            events += opening + b'},"logprobs":null,"finish_reason":"' + reason + b'"' + stop + end
        return events

    def _finish(self, finish: FinishReason) -> str:
        if self._legacy and finish is FinishReason.TOOL_CALLS:
            return LEGACY_TOOL_CALLS
        return FINISH[finish]

    def end(self, usage: Usage) -> bytes:
        return (own_wire.usage_chunk(self._head, usage) if self._body.include_usage else b"") + wire.DONE

    def broken(self, error: ServeError) -> bytes:
        return broken(error)

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        listed = list(choices)
        answer: answers.ChatCompletion = {
            "id": self._head["id"],
            "object": "chat.completion",
            "created": self._head["created"],
            "model": self._head["model"],
            "system_fingerprint": self._head["system_fingerprint"],
            "choices": [self._choice(i, choice) for i, choice in enumerate(listed)],
            "usage": own_wire.usage_fields(usage),
        }
        if self._body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = wire.prompt_entries(listed[0].prompt_logprobs or ())
        if self._body.return_token_ids:
            answer["prompt_token_ids"] = listed[0].prompt_token_ids
        return wire.encode(answer)

    def _choice(self, index: int, choice: Choice) -> answers.ChatChoice:
        fields: answers.ChatChoice = {
            "index": index,
            "message": self._message(choice),
            "logprobs": self._logprobs(choice.logprobs) if self._body.logprobs else None,
            "finish_reason": self._finish(choice.finish) if choice.finish else None,
        }
        if (reason := own_wire.stop_reason(choice.finish, choice.stop)) is not None:
            fields["stop_reason"] = reason
        if self._body.return_token_ids:
            fields["token_ids"] = choice.token_ids
        return fields

    def _message(self, choice: Choice) -> answers.Message:
        content = choice.text if choice.text or not choice.calls else None
        message: answers.Message = {"role": "assistant", "content": content, "refusal": None}
        if choice.reasoning and self._body.include_reasoning is not False:
            message["reasoning_content"] = choice.reasoning
        if choice.calls and self._legacy:
            message["function_call"] = wire.function_fields(choice.calls[0])
        elif choice.calls:
            message["tool_calls"] = [
                own_wire.custom_call_fields(call)
                if call.name in self._customs
                else wire.tool_call_fields(call)
                for call in choice.calls
            ]
        return message

    def _logprobs(self, tokens: Iterable[TextLogprob]) -> answers.ChatLogprobs:
        if self._body.return_tokens_as_token_ids:
            tokens = map(wire.named_by_id, tokens)
        return {"content": [wire.token_with_alternatives(token) for token in tokens], "refusal": None}
