"""POST /v1/chat/completions of MindIE: OpenAI's route with MindIE's ranges, words and chunks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, Final

from serve_app import limits
from serve_app.api.dialects.chat import field_types, shapes
from serve_app.api.dialects.chat import wire as openai
from serve_app.api.dialects.chat.beam import beam_names, beam_width
from serve_app.api.dialects.chat.fields import StreamOptions
from serve_app.api.dialects.chat.response_format.grammar import parse_form
from serve_app.api.dialects.chat.templating import parse_variables
from serve_app.api.dialects.chat.tools import parse_tools
from serve_app.api.dialects.mindie import answers
from serve_app.api.dialects.mindie.errors import broken, render_body_error
from serve_app.api.dialects.mindie.fields import MAX_TIMEOUT_S, MODEL_NAME, SharedFields, fit_output
from serve_app.api.dialects.mindie.messages import parse_messages
from serve_app.api.dialects.mindie.wire import FINISH, STREAM_TYPE
from serve_app.api.edge.body import parse_body
from serve_app.api.protocol.dialect import Call, Choice
from serve_app.api.protocol.field_doc import FieldDoc, doc
from serve_app.api.protocol.fields import Described, Flag, Integer, Mark, Number, Sets
from serve_app.config import MindieConfig
from serve_app.endpoints.endpoint import Task
from serve_app.errors import InvalidField, ServeError
from serve_app.types import (
    Beam,
    FinishReason,
    GenerateRequest,
    ModelInfo,
    Overflow,
    Prompt,
    Templating,
    TextLogprob,
    TokenDelta,
    Usage,
)

_DONE: Final = b"data: [DONE]\n\n"


class ChatBody(SharedFields):
    """A chat request; `check` tests combinations of fields."""

    model: field_types.ModelName = doc(
        "the endpoint that answers; an unknown one is a 422",
        accepts=(
            f"1 to {limits.MAX_MODEL_NAME_CHARS} of A-Z a-z 0-9 . _ -, beginning and ending with a "
            "letter or digit"
        ),
        required=True,
    )
    messages: Annotated[Any, Described(shapes.Messages), Mark.UNANSWERED, Sets("prompt")] = doc(
        "any order of roles",
        accepts=(
            f"a list of 1 to {limits.MAX_MESSAGES} messages, of 1 to {MindieConfig().max_input_chars} "
            "characters together (setting `mindie.max_input_chars`)"
        ),
        members={
            "tool_calls": FieldDoc(
                "earlier calls, given to the template", accepts="a list of calls; of an assistant"
            ),
            "role": FieldDoc(accepts="system, user, assistant or tool"),
            "content": FieldDoc(
                "parts are joined by line breaks",
                accepts=(
                    f"a string or a list of up to {limits.MAX_CONTENT_PARTS} text parts, not empty; "
                    "absent, null or empty"
                    " beside `tool_calls`"
                ),
            ),
            "tool_call_id": FieldDoc(
                "the call that is answered", accepts="a string, not empty; required of role tool"
            ),
        },
        required=True,
    )
    max_tokens: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = doc(
        "default that of the model",
        accepts=", up to the model's `maxIterTimes` (setting `mindie.clamp_max_tokens` lowers it instead)",
    )
    presence_penalty: Annotated[float | None, Number(-2, 2)] = doc("sees the output", default=0.0)
    frequency_penalty: Annotated[float | None, Number(-2, 2)] = doc("sees the output", default=0.0)
    repetition_penalty: Annotated[float | None, Number(0, 2, above=True)] = doc(
        "sees prompt and output", default=1.0
    )
    temperature: Annotated[float | None, Number(0, 2, above=True)] = doc(
        accepts=" (setting `mindie.allow_zero_temperature`: 0 is greedy)", default=1.0
    )
    top_k: field_types.TopK = doc("default off; −1 and 0 are off, 1 is greedy")
    stream: field_types.Stream = None
    include_stop_str_in_output: Flag = doc(default=False)
    skip_special_tokens: Flag = doc(default=True)
    ignore_eos: Flag = doc(default=False)
    n: field_types.Choices = None
    best_of: field_types.BestOf = doc("default `n`", accepts="; at least `n`, equal to it in a stream")
    use_beam_search: Flag = doc(
        "the best hypotheses of a search",
        accepts=f"; true needs `n` or `best_of` from 2 to {limits.MAX_BEAM_WIDTH}",
        default=False,
    )
    logprobs: field_types.Logprobs = None
    top_logprobs: field_types.TopLogprobs = doc(accepts="; above 0 needs `logprobs: true`", default=0)
    stream_options: StreamOptions | None = doc(
        "see its member",
        accepts="an object; only with `stream: true`",
        members={"include_usage": FieldDoc("the last chunk has `usage`", default=False)},
    )
    tools: field_types.Tools = None
    tool_choice: field_types.ToolChoice = None
    parallel_tool_calls: field_types.ParallelToolCalls = None
    response_format: Annotated[Any, Described(shapes.ResponseFormat), Mark.UNANSWERED] = doc(
        "default text; the answer matches",
        accepts="an object: `type` is text, json_object, or json_schema with `json_schema`",
    )
    chat_template_kwargs: field_types.TemplateKwargs = None
    timeout: Annotated[float | None, Number(0, MAX_TIMEOUT_S, above=True)] = doc(
        "seconds; default the operator's"
    )

    def check(self) -> None:
        """Raises InvalidField."""
        self.check_stop("stop")
        if self.model is None or not MODEL_NAME.fullmatch(self.model):
            raise InvalidField(
                "model",
                "is required and must be 1 to 256 characters of A-Z a-z 0-9 . _ - beginning and "
                "ending with a letter or digit",
            )
        if self.top_logprobs and not self.logprobs:
            raise InvalidField("top_logprobs", "only allowed when logprobs is true")
        n, best_of = self.n or 1, self.best_of
        if best_of is not None and (best_of < n or (self.stream and best_of != n)):
            raise InvalidField("best_of", "must be at least n, and equal to n in a stream")
        if self.stream_options is not None and not self.stream:
            raise InvalidField("stream_options", "only allowed when stream is true")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class GreedyChatBody(ChatBody):
    """The body for servers that allow a temperature of 0, which means greedy decoding."""

    temperature: Annotated[float | None, Number(0, 2)] = None


class ChatDialect:
    """Chat: messages in, assistant messages out."""

    stream_type = STREAM_TYPE
    render_error = staticmethod(render_body_error)

    def __init__(self, config: MindieConfig) -> None:
        self._config = config
        self._body = GreedyChatBody if config.allow_zero_temperature else ChatBody

    def parse(self, raw: bytes, endpoint: str | None = None) -> Call:
        """Raises InvalidBody, InvalidField or PromptTooLong."""
        body = parse_body(self._body, raw)
        body.check()
        model = endpoint or body.model or ""
        beam = Beam(width=beam_width(body.n, body.best_of)) if body.use_beam_search else None
        offer = parse_tools(body.tools, body.tool_choice, parallel=body.parallel_tool_calls is not False)
        form = parse_form({"response_format": body.response_format})
        request = GenerateRequest(
            id="",
            model=model,
            prompt=Prompt(
                messages=parse_messages(body.messages, self._config.max_input_chars),
                tools=offer.tools,
                templating=Templating(variables=parse_variables(body.chat_template_kwargs)),
            ),
            tool_choice=offer.choice,
            grammar=form.grammar,
            sampling=body.sampling(body.max_tokens, max(body.top_k or 0, 0)),
            n=body.n or 1,
            best_of=None if beam else body.best_of,
            beam=beam,
            stop=body.stop or (),
            include_stop=bool(body.include_stop_str_in_output),
            skip_special_tokens=body.skip_special_tokens is not False,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            stream=bool(body.stream),
            reasoning=False,  # the protocol has no place for thoughts but the text
            overflow=Overflow.WINDOW,
            priority=body.engine_priority,
        )
        return Call(
            model=model,
            task=Task.CHAT,
            requests=(request,),
            stream=bool(body.stream),
            timeout_s=body.timeout,
            ignored=(*form.ignored, *offer.ignored),  # unknown fields are, by this protocol, in silence
            renderer=partial(ChatRenderer, body=body.for_answer()),
            names={
                **body.names,
                "model": f"model {model!r}",  # which has passed its pattern
                **(beam_names(body.best_of) if beam else {}),
            },
            fit=partial(fit_output, clamp=self._config.clamp_max_tokens),
        )


class ChatRenderer:
    """Writes chat completions and their chunks. The model is called by the name that the client used."""

    def __init__(self, id: str, info: ModelInfo, body: ChatBody) -> None:
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._head = openai.head(kind, id, body.model or "")
        self._opening = b"data: " + openai.encode(self._head)[:-1] + b',"choices":['
        self._body = body
        self._open = set(range(body.n or 1))
        self._held: dict[int, list[TextLogprob]] = {}  # of tokens whose text is still to come

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        held = self._held.setdefault(delta.index, [])
        held += delta.logprobs or ()
        events = b""
        for content in openai.delta_members(delta, legacy=False, always=False):
            events += self._chunk(delta.index, b'"role":"assistant",' + content)
        if delta.finish is not None:
            self._open.discard(delta.index)
            usage = delta.usage if self._body.include_usage and not self._open else None
            events += self._chunk(delta.index, b"", delta.finish, usage)
        return events

    def end(self, usage: Usage) -> bytes:
        return _DONE

    def broken(self, error: ServeError) -> bytes:
        closing = [self._chunk(index, b"", FinishReason.ABORT) for index in sorted(self._open)]
        return b"".join([b"data: ", broken(error), b"\n\n", *closing, _DONE])

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        rendered = [self._choice(i, choice) for i, choice in enumerate(choices)]
        answer: answers.ChatCompletion = {
            **self._head,
            "choices": rendered,
            "usage": openai.usage_totals(usage),
        }
        return openai.encode(answer)

    def _choice(self, index: int, choice: Choice) -> answers.ChatChoice:
        message: answers.Message = {"role": "assistant", "content": choice.text}
        if choice.calls:
            message["tool_calls"] = [openai.tool_call_fields(call) for call in choice.calls]
        finish = FINISH[choice.finish] if choice.finish else None
        if not self._body.logprobs:
            return {"index": index, "message": message, "finish_reason": finish}
        listed = openai.listed_tokens(choice.logprobs)
        return {"index": index, "message": message, "logprobs": listed, "finish_reason": finish}

    def _chunk(
        self, index: int, delta: bytes, finish: FinishReason | None = None, usage: Usage | None = None
    ) -> bytes:
        """`delta`: the members of the chunk's delta."""
        held = self._held.pop(index, [])
        listed = b',"logprobs":' + openai.encode(openai.listed_tokens(held)) if self._body.logprobs else b""
        reason = openai.encode(FINISH[finish] if finish else None)
        tail = b"" if usage is None else b',"usage":' + openai.encode(openai.usage_totals(usage))
        start = b'%b{"index":%d,"delta":{%b}%b' % (self._opening, index, delta, listed)
        return b'%b,"finish_reason":%b}]%b}\n\n' % (start, reason, tail)
