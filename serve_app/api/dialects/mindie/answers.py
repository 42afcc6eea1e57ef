"""The shapes of MindIE's answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from serve_app.api.dialects.chat.answers import Head, Logprobs, ToolCall, ToolCallPiece, TotalUsage
from serve_app.api.dialects.mindie.errors import TYPE
from serve_app.api.dialects.mindie.wire import FINISH
from serve_app.api.protocol.fields import words

FinishWord: TypeAlias = Annotated[str, words(FINISH.values())]
ErrorType: TypeAlias = Annotated[str, words(TYPE.values())]


class ErrorBody(TypedDict):
    """An error in MindIE's shape."""

    error: str
    error_type: ErrorType


class Message(TypedDict):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One answer of several."""

    index: int
    message: Message
    logprobs: NotRequired[Logprobs]
    finish_reason: FinishWord | None


class ChatCompletion(Head):
    """The whole answer to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: TotalUsage


class ChatDelta(TypedDict, total=False):
    """The members that a chunk adds; the last chunk of a choice adds none."""

    role: Literal["assistant"]
    content: str
    tool_calls: list[ToolCallPiece]


class ChatChunkChoice(TypedDict):
    """A piece of one answer."""

    index: int
    delta: ChatDelta
    logprobs: NotRequired[Logprobs]
    finish_reason: FinishWord | None


class ChatChunk(Head):
    """A piece of a streamed answer to a chat."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[TotalUsage]


class Timed(TypedDict):
    """The first members of an answer, and its times in milliseconds."""

    id: str
    model_name: str
    model_version: str | None
    text_output: str
    prefill_time: NotRequired[int | None]
    decode_time: NotRequired[int | None]


class Counted(TypedDict):
    """What both forms of details share. Costs are in milliseconds; `perf_stat` has token ids and costs."""

    finish_reason: NotRequired[FinishWord]
    generated_tokens: int
    first_token_cost: int | None
    decode_cost: int | None
    perf_stat: NotRequired[list[tuple[int, int]]]


class Details(Counted):
    """Details of a whole answer: lists with an entry for each token. Waits are in microseconds."""

    batch_size: list[int]
    queue_wait_time: list[int]


class EventDetails(Counted):
    """Details of one event: the numbers for its token. The wait is in microseconds."""

    batch_size: int
    queue_wait_time: int


class Text(Timed):
    """The whole continuation of a text."""

    details: NotRequired[Details]


class TextEvent(Timed):
    """A token of a streamed continuation."""

    details: NotRequired[EventDetails]


class PromptToken(TypedDict):
    """A token of the prompt; the first one has no log-probability."""

    id: int
    text: str
    logprob: float | None


class TgiToken(PromptToken):
    """A token of the answer, with its log-probability if details are asked for."""

    special: bool


class Ended(TypedDict):
    """How an answer ended; the seed is null with greedy decoding."""

    finish_reason: FinishWord | None
    generated_tokens: int
    seed: int | None


class TgiDetails(Ended):
    """Details of a whole answer of TGI's routes."""

    prompt_tokens: int
    prefill: list[PromptToken]
    tokens: list[TgiToken]
    top_tokens: NotRequired[list[list[TgiToken]]]


class Tgi(TypedDict):
    """The whole continuation, in TGI's form."""

    generated_text: str
    details: NotRequired[TgiDetails]


class TgiEventDetails(Ended):
    """Details in the last event of TGI's routes."""

    input_length: int


class TgiEvent(TypedDict):
    """A token of a streamed continuation; the last event has the whole text."""

    index: int
    token: TgiToken | None
    top_tokens: NotRequired[list[TgiToken]]
    generated_text: str | None
    details: TgiEventDetails | None


class InferDetails(Ended):
    """Details of a whole answer of MindIE's own route."""

    generated_token_ids: list[int]


class Infer(TypedDict):
    """The whole continuation, in MindIE's form."""

    generated_text: str
    details: NotRequired[InferDetails]


class InferToken(TypedDict):
    """A token; the text of the last token is null."""

    id: int | None
    text: str | None


class InferEvent(TypedDict):
    """A token of a streamed continuation. Times are in milliseconds; the last event has the whole text."""

    prefill_time: float | None
    decode_time: float | None
    token: InferToken
    generated_text: NotRequired[str]
    details: NotRequired[Ended | None]


class Stopped(TypedDict):
    """Which request was ended."""

    id: str


class ServerPage(TypedDict):
    """The server's name, version and extensions."""

    name: str
    version: str
    extensions: list[str]


class TextTensor(TypedDict):
    """A text that is an input or an output."""

    name: str
    datatype: Literal["BYTES"]
    shape: list[int]


class ModelPage(TypedDict):
    """A model, its versions, its inputs and its outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TextTensor]
    outputs: list[TextTensor]


class ReadyPage(TypedDict):
    """A model that answers."""

    name: str
    ready: Literal[True]


class ConfigPage(TypedDict):
    """The limits of a model, in tokens."""

    modelName: str
    maxSeqLen: int
    maxOutputLen: int
    worldSize: int
