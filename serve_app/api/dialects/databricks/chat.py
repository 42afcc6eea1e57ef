"""The chat task of Databricks' Foundation Model API."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, ClassVar, Final

from msgspec import structs

from serve_app import limits
from serve_app.api.dialects.chat import field_types, shapes, wire
from serve_app.api.dialects.chat.finish import FINISH
from serve_app.api.dialects.chat.response_format.grammar import parse_form
from serve_app.api.dialects.chat.thinking_budget import ThinkingOptions
from serve_app.api.dialects.chat.tools import ToolOffer, parse_tools
from serve_app.api.dialects.databricks import answers
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.dialects.databricks.fields import (
    REASONING_EFFORTS,
    GenerationFields,
    RouteContext,
    parse_fields,
)
from serve_app.api.dialects.databricks.messages import parse_messages
from serve_app.api.dialects.databricks.renderer import Renderer, usage_fields
from serve_app.api.dialects.databricks.thinking import tells_parts, templating, thoughts_part
from serve_app.api.protocol.dialect import Call, Choice
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import Described, Mark, OneOf, Sets
from serve_app.endpoints.endpoint import Databricks, Endpoint, Task
from serve_app.errors import InvalidField
from serve_app.types import GenerateRequest, ModelInfo, Prompt, TextLogprob, TokenDelta, Usage

TIERS: Final = ("auto", "default", "flex", "priority")

_DATABRICKS: Final = Databricks()


class ChatBody(GenerationFields):
    """A chat request; `check` tests combinations of fields."""

    task: ClassVar[Task] = Task.CHAT

    messages: Annotated[Any, Described(shapes.Messages), Mark.UNANSWERED, Sets("prompt")] = doc(
        "[system] user, then user and assistant in turn, tool answers after their "
        "calls; the last is user or tool",
        accepts=f"a list of 1 to {limits.MAX_MESSAGES} messages",
        members={
            "role": FieldDoc("decides what may follow", accepts="system, user, assistant or tool"),
            "content": FieldDoc(
                "parts are joined by line breaks",
                accepts="a string or text parts; beside `tool_calls` it may be absent or empty",
            ),
            "tool_calls": FieldDoc(
                "`arguments` may be text or an object",
                accepts="a list of calls {`id`, `type`, `function`}, all required; of an assistant",
            ),
            "tool_call_id": FieldDoc(
                "pairs an answer with its call",
                accepts="an id of the calls before; required of role tool, of no other",
            ),
        },
        required=True,
    )
    max_completion_tokens: field_types.MaxCompletionTokens = None
    tools: field_types.Tools = doc(
        "default none",
        accepts=(
            f"a list of up to {_DATABRICKS.max_tools} function tools, of up to "
            f"{_DATABRICKS.max_tool_properties} properties (settings "
            "`max_tools`, `max_tool_properties`)"
        ),
        members={
            "description": FieldDoc(
                "may be absent, unless the setting `strict_tools` is on", accepts="a string"
            ),
            "strict": FieldDoc(
                "true forces arguments into the schema; a keyword that cannot be guaranteed is a 400",
                accepts="true or false",
                default=False,
            ),
        },
    )
    tool_choice: field_types.ToolChoice = doc(
        "default auto",
        accepts="none, auto, required or an object that names a tool; only with `tools`, but for none",
    )
    parallel_tool_calls: field_types.ParallelToolCalls = None
    response_format: Annotated[Any, Described(shapes.ResponseFormat), Mark.UNANSWERED] = doc(
        "default text; the answer matches",
        accepts=(
            "an object: `type` is text, json_object, or json_schema with `json_schema` "
            "{`name`, `schema`, `strict`, `description`}"
        ),
    )
    logprobs: field_types.Logprobs = None
    top_logprobs: field_types.TopLogprobs = doc("default none", accepts="; only with `logprobs: true`")
    reasoning_effort: Annotated[str | None, OneOf(REASONING_EFFORTS)] = doc(
        "variable `reasoning_effort` of the model's template; none also sets `enable_thinking` to false",
        accepts="none, minimal, low, medium, high or xhigh",
    )
    thinking: ThinkingOptions | None = doc(
        "see its members; with a type but disabled, thoughts are parts of type `reasoning` in the content",
        accepts="an object",
    )
    service_tier: Annotated[str | None, OneOf(TIERS)] = doc(
        "the server has one; flex and priority are ignored and listed"
    )
    metadata: Annotated[dict[str, Any] | None, Mark.UNANSWERED] = doc(
        "accepted, no effect", accepts="an object"
    )

    def check(self, endpoint: Endpoint, *, stream: bool) -> None:
        """Raises InvalidField."""
        super().check(endpoint, stream=stream)
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidField("top_logprobs", "only allowed when logprobs is true")
        if len({self.max_tokens, self.max_completion_tokens} - {None}) > 1:
            raise InvalidField("max_tokens", "must equal max_completion_tokens when both are given")

    @property
    def ignored_tier(self) -> tuple[str, ...]:
        """The field `service_tier`, if it asks for a tier that this server does not have."""
        return () if self.service_tier in (None, "auto", "default") else ("service_tier",)


class ChatDialect:
    """The dialect of chats, for one request: messages in, assistant messages out."""

    stream_type = wire.STREAM_TYPE
    render_error = staticmethod(render_error)

    def __init__(self, target: RouteContext) -> None:
        self._target = target

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField or ModelNotFound."""
        body = parse_fields(ChatBody, raw)
        found = body.endpoint(self._target, endpoint)
        stream = body.streams(self._target, found)
        body.check(found, stream=stream)
        messages = parse_messages(body.messages)
        offer = _offer(
            body.tools, body.tool_choice, found.databricks, parallel=body.parallel_tool_calls is not False
        )
        form = parse_form({"response_format": body.response_format})
        request = GenerateRequest(
            id="",
            model=found.name,
            prompt=Prompt(
                messages=_opened(messages, found.databricks.system_prompt),
                tools=offer.tools,
                templating=templating(body.thinking, body.reasoning_effort),
            ),
            thinking_tokens=None if body.thinking is None else body.thinking.budget_tokens,
            tool_choice=offer.choice,
            grammar=form.grammar,
            sampling=body.sampling(body.max_tokens or body.max_completion_tokens),
            n=body.choices,
            stop=body.stop or (),
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            stream=stream,
        )
        return Call(
            model=found.name,
            task=Task.CHAT,
            user=body.user,
            requests=(request,),
            stream=stream,
            timeout_s=None,
            ignored=(*form.ignored, *offer.ignored, *body.ignored_tier),
            renderer=partial(ChatRenderer, stream=stream, body=body.for_answer()),
            names=body.names,
        )


def _opened(messages: tuple[dict[str, Any], ...], system_prompt: str | None) -> tuple[dict[str, Any], ...]:
    """The messages. If the messages have no system prompt, the endpoint's own comes first."""
    if system_prompt is None or messages[0]["role"] == "system":
        return messages
    return ({"role": "system", "content": system_prompt}, *messages)


class ChatRenderer(Renderer):
    """Writes chat completions and their chunks."""

    def __init__(self, id: str, info: ModelInfo, body: ChatBody, *, stream: bool) -> None:
        kind = "chat.completion.chunk" if stream else "chat.completion"
        super().__init__(kind, f"chatcmpl-{id}", info, body.choices, body.include_usage)
        self._logprobs = bool(body.logprobs)
        self._tells_parts = tells_parts(body.thinking)

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        index, events = delta.index, b""
        if index not in self._begun:
            self._begun.add(index)
            events = self._piece(index, self._delta(b'"role":"assistant","content":""'))
        logprobs = delta.logprobs if self._logprobs else None
        told = delta
        if self._tells_parts and delta.reasoning:
            thoughts = b'"content":' + wire.encode([thoughts_part(delta.reasoning)])
            events += self._piece(index, self._delta(thoughts, logprobs))
            logprobs, told = None, structs.replace(delta, reasoning="")
        for content in wire.delta_members(told, legacy=False, always=bool(logprobs)):
            events += self._piece(index, self._delta(content, logprobs))
            logprobs = None  # they belong to the whole step, and are sent once
        if delta.finish is not None:
            events += self._last(index, self._delta(b""), prompt, delta)
        return events

    def _delta(self, content: bytes, logprobs: Iterable[TextLogprob] | None = None) -> bytes:
        if not self._logprobs:
            return b'"delta":{' + content + b"}"
        listed = b"null" if logprobs is None else wire.encode(wire.listed_tokens(logprobs))
        return b'"delta":{' + content + b'},"logprobs":' + listed

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        rendered = [self._choice(i, choice) for i, choice in enumerate(choices)]
        usages = usage_fields(usage)
        answer: answers.ChatCompletion = {**self._head, "choices": rendered, "usage": usages}
        return wire.encode(answer)

    def _choice(self, index: int, choice: Choice) -> answers.ChatChoice:
        message = _message(choice, tells_parts=self._tells_parts)
        finish = FINISH[choice.finish] if choice.finish else None
        if not self._logprobs:
            return {"index": index, "message": message, "finish_reason": finish}
        listed = wire.listed_tokens(choice.logprobs)
        return {"index": index, "message": message, "logprobs": listed, "finish_reason": finish}


def _message(choice: Choice, *, tells_parts: bool) -> answers.Message:
    message: answers.Message = {
        "role": "assistant",
        "content": choice.text if choice.text or not choice.calls else None,
    }
    if choice.reasoning and tells_parts:
        said: list[answers.SaidPart] = [{"type": "text", "text": choice.text}] if choice.text else []
        message["content"] = [thoughts_part(choice.reasoning), *said]
    elif choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["tool_calls"] = [wire.tool_call_fields(call) for call in choice.calls]
    return message


def _offer(tools: Any, choice: Any, settings: Databricks, *, parallel: bool) -> ToolOffer:
    """OpenAI's tools, within the endpoint's limits. Raises InvalidField or UnsupportedField."""
    if not tools and choice not in (None, "none"):
        raise InvalidField("tool_choice", "only together with tools, unless it is none")
    offer = parse_tools(tools, choice, parallel=parallel, max_tools=settings.max_tools)
    for i, tool in enumerate(offer.tools):
        _check_tool(tool["function"], f"tools.{i}.function", settings)
    return offer


def _check_tool(function: dict[str, Any], where: str, settings: Databricks) -> None:
    if settings.strict_tools and "description" not in function:
        raise InvalidField(f"{where}.description", "is required")
    parameters = f"{where}.parameters"
    properties = function["parameters"].get("properties", {})
    if isinstance(properties, dict) and len(properties) > settings.max_tool_properties:
        raise InvalidField(parameters, f"must have at most {settings.max_tool_properties} properties")
