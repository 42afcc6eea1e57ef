"""POST /v3/chat/completions of OpenVINO Model Server."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from serve_app import limits
from serve_app.api.dialects.chat import field_types, shapes
from serve_app.api.dialects.chat import wire as openai
from serve_app.api.dialects.chat.finish import FINISH
from serve_app.api.dialects.chat.messages import parse_messages
from serve_app.api.dialects.chat.tools import parse_offer
from serve_app.api.dialects.ovms import answers
from serve_app.api.dialects.ovms.errors import OvmsDialect
from serve_app.api.dialects.ovms.fields import SharedFields, templating_of
from serve_app.api.dialects.ovms.renderer import Renderer
from serve_app.api.edge.body import parse_body
from serve_app.api.protocol.dialect import Call, Choice
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import Described, Mark, Sets
from serve_app.config import OvmsConfig
from serve_app.endpoints.endpoint import Task
from serve_app.errors import InvalidField
from serve_app.types import GenerateRequest, ModelInfo, Prompt, TokenDelta


class ChatBody(SharedFields):
    """A chat request; `check` tests combinations of fields."""

    messages: Annotated[Any, Described(shapes.Messages), Mark.UNANSWERED, Sets("prompt")] = doc(
        "no order of roles but the template's",
        accepts=f"a list of 1 to {limits.MAX_MESSAGES} messages",
        members={
            "tool_calls": FieldDoc(
                "earlier calls, given to the template", accepts="a list of calls; of an assistant"
            ),
            "role": FieldDoc(accepts="system, developer, user, assistant, tool or function"),
            "content": FieldDoc(
                "without it a message is empty; parts are joined by line breaks",
                accepts=f"a string or a list of up to {limits.MAX_CONTENT_PARTS} text parts; "
                "null only beside calls",
            ),
        },
        required=True,
    )
    logprobs: field_types.Logprobs = None
    top_logprobs: field_types.TopLogprobs = doc(accepts="; above 0 needs `logprobs: true`", default=0)
    tools: field_types.Tools = None
    tool_choice: field_types.ToolChoice = None
    parallel_tool_calls: field_types.ParallelToolCalls = None
    functions: field_types.Functions = None
    function_call: field_types.FunctionCall = None
    chat_template_kwargs: field_types.TemplateKwargs = doc(
        "variables for the model's template; `add_generation_prompt` is one of them",
        accepts=field_types.TEMPLATE_VARIABLES,
    )

    def check(self, config: OvmsConfig) -> None:
        super().check(config)
        if self.top_logprobs and not self.logprobs:
            raise InvalidField("top_logprobs", "only allowed when logprobs is true")


class ChatDialect(OvmsDialect):
    """Chat: messages in, assistant messages out."""

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody or InvalidField."""
        body = parse_body(ChatBody, raw)
        body.check(self._config)
        model = endpoint or body.model or ""
        offer = parse_offer(
            tools=body.tools,
            tool_choice=body.tool_choice,
            functions=body.functions,
            function_call=body.function_call,
            parallel=body.parallel_tool_calls is not False,
        )
        form = body.form()
        request = GenerateRequest(
            id="",
            model=model,
            prompt=Prompt(
                messages=parse_messages(_with_content(body.messages)),
                tools=offer.tools,
                templating=templating_of(body.chat_template_kwargs),
            ),
            tool_choice=offer.choice,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            **body.options(self._config, form.grammar),
        )
        return Call(
            model=model,
            task=Task.CHAT,
            user=body.user,
            requests=(request,),
            stream=bool(body.stream),
            timeout_s=None,
            shows_ids="detokenize" if body.detokenize is False else None,
            ignored=(*form.ignored, *offer.ignored),  # unknown fields are, by this protocol, in silence
            renderer=partial(ChatRenderer, body=body.for_answer(), model=model, legacy=offer.legacy),
            names={**offer.names, **body.names},
        )


class ChatRenderer(Renderer):
    """Writes chat completions and their chunks."""

    _body: ChatBody

    def __init__(self, id: str, info: ModelInfo, body: ChatBody, model: str, legacy: bool = False) -> None:
        """`legacy`: whether a call is sent as the deprecated `function_call`."""
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        super().__init__(kind, f"chatcmpl-{id}", model, info, body)
        self._legacy = legacy
        self._begun: set[int] = set()  # choices whose role was sent

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        events = b""
        logprobs = openai.listed_tokens(delta.logprobs) if self._body.logprobs and delta.logprobs else None
        ids = delta.token_ids
        for member in self._members(delta, always=logprobs is not None):
            # What belongs to the whole step is sent once.
            events += self._chunk(delta.index, member, ids, logprobs)
            ids, logprobs = (), None
        if delta.finish is not None:
            events += self._piece(delta.index, b'"delta":{}', finish=FINISH[delta.finish])
        return events

    def _members(self, delta: TokenDelta, *, always: bool) -> list[bytes]:
        """The members of a delta, one entry for each chunk; `always`: send at least one."""
        if not self._is_text:
            return [b'"content":""'] if delta.token_ids else []
        return openai.delta_members(delta, legacy=self._legacy, always=always)

    def _chunk(self, index: int, member: bytes, ids: tuple[int, ...], logprobs: Any) -> bytes:
        role = b"" if index in self._begun else b'"role":"assistant",'
        self._begun.add(index)
        content = b'"delta":{' + role + member + b"}"
        if not self._is_text:
            content = b'"token_ids":' + openai.encode(ids) + b"," + content
        return self._piece(index, content, logprobs=logprobs)

    def _choice(self, index: int, choice: Choice) -> answers.ChatChoice:
        fields: answers.ChatChoice = {
            "finish_reason": FINISH[choice.finish] if choice.finish else None,
            "index": index,
            "logprobs": openai.listed_tokens(choice.logprobs) if self._body.logprobs else None,
            "message": self._message(choice),
        }
        if not self._is_text:
            fields["token_ids"] = choice.token_ids
        return fields

    def _message(self, choice: Choice) -> answers.Message:
        if not self._is_text:
            return {"content": "", "role": "assistant"}
        message: answers.Message = {"content": choice.text, "role": "assistant"}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message["content"] = choice.text or None
            if self._legacy:
                message["function_call"] = openai.function_fields(choice.calls[0])
            else:
                message["tool_calls"] = [openai.tool_call_fields(call) for call in choice.calls]
        return message


def _with_content(messages: Any) -> Any:
    """The messages; as in OpenVINO Model Server, a message without the member `content` is empty."""
    if not isinstance(messages, list):
        return messages
    return [{"content": "", **each} if isinstance(each, dict) else each for each in messages]
