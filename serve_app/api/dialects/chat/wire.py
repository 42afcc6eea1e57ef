"""Pieces of OpenAI's answers: events, usage, finish reasons, log-probabilities.

Streams are written from an envelope that is serialised once per choice; an event encodes only what
changes. Depends neither on bodies nor on sockets.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec

from serve_app.api.dialects.chat import answers
from serve_app.api.dialects.chat.custom_tools import CUSTOM, INPUT, HeldCalls
from serve_app.api.protocol.dialect import ToolCall
from serve_app.json_schema.numerals import dumps
from serve_app.types import ModelInfo, TextLogprob, TokenDelta, ToolCallDelta, Usage

STREAM_TYPE: Final = "text/event-stream; charset=utf-8"
DONE: Final = b"data: [DONE]\n\n"
LOWEST_LOGPROB: Final = -9999.0  # stands for all below it: JSON has neither -Infinity nor NaN

_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def as_given(value: Any) -> msgspec.Raw:
    """A client's JSON, as an answer repeats it: numbers are written as the client wrote them."""
    return msgspec.Raw(dumps(value).encode("utf-8", "surrogatepass"))


def tool_call_fields(call: ToolCall) -> answers.ToolCall:
    """A call in a whole message."""
    return {"id": call.id, "type": "function", "function": function_fields(call)}


def function_fields(call: ToolCall) -> answers.FunctionCall:
    return {"name": call.name, "arguments": call.arguments}


def custom_call_begin(piece: ToolCallDelta) -> bytes:
    """The members of a custom tool call's first delta; the call's text follows in one piece."""
    head = {"index": piece.index, "id": piece.id, "type": CUSTOM, CUSTOM: {"name": piece.name, INPUT: ""}}
    return b'"tool_calls":' + encode([head])


def custom_call_text(index: int, text: str) -> bytes:
    """The members of the delta with a custom tool call's whole text."""
    return b'"tool_calls":' + encode([{"index": index, CUSTOM: {INPUT: text}}])


def tool_call_delta(piece: ToolCallDelta, *, legacy: bool) -> bytes:
    """The members of a delta with a piece of a call; `legacy`: whether as `function_call`."""
    function = {"arguments": piece.arguments}
    if piece.name is not None:
        function = {"name": piece.name, **function}
    if legacy:
        return b'"function_call":' + encode(function)
    head = {} if piece.id is None else {"id": piece.id, "type": "function"}
    return b'"tool_calls":' + encode([{"index": piece.index, **head, "function": function}])


def delta_members(
    delta: TokenDelta, *, legacy: bool, always: bool, customs: HeldCalls | None = None
) -> list[bytes]:
    """The members that a delta adds, one per chunk; `always`: at least one. `legacy`: see `tool_call_delta`.

    `customs`: the calls of custom tools so far; None: there are no such tools.
    """
    members: list[bytes] = []
    if delta.reasoning:
        members.append(b'"reasoning_content":' + encode(delta.reasoning))
    if delta.text:
        members.append(b'"content":' + encode(delta.text))
    if customs is None:
        members += [tool_call_delta(piece, legacy=legacy) for piece in delta.tool_calls]
    else:
        members += _with_customs(delta, customs)
    return members or ([b'"content":""'] if always else [])


def _with_customs(delta: TokenDelta, customs: HeldCalls) -> Iterator[bytes]:
    """Pieces of calls; the text for a custom tool is sent once its call is complete."""
    for piece in delta.tool_calls:
        yield from itertools.starmap(custom_call_text, customs.ended(delta.index, but=piece.index))
        if not customs.takes(delta.index, piece):
            yield tool_call_delta(piece, legacy=False)
        elif piece.name is not None:
            yield custom_call_begin(piece)
    if delta.finish is not None:
        yield from itertools.starmap(custom_call_text, customs.ended(delta.index))


def sse(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def named_sse(name: str, payload: bytes) -> bytes:
    """An event with a name, as in Anthropic's messages and OpenAI's responses."""
    return b"event: " + name.encode() + b"\n" + sse(payload)


def fingerprint(info: ModelInfo) -> str:
    """A fingerprint that changes with the model, its precision, its device and its replica."""
    text = f"{info.name}|{info.dtype}|{info.quantization}|{info.device}|{info.created}"
    return "fp_" + hashlib.sha256(text.encode()).hexdigest()[:10]


def head(kind: str, id: str, model: str) -> answers.Begun:
    """The members that every object of one answer begins with."""
    return {"id": id, "object": kind, "created": int(time.time()), "model": model}


def usage_totals(usage: Usage) -> answers.TotalUsage:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def chunk_end(*, include_usage: bool) -> bytes:
    """The bytes after the choice of a chunk; usage, if included, is null in every chunk but the last."""
    return b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"


def chunk_end_with(usage: Usage) -> bytes:
    """The end of a chunk that reports the usage so far, for vLLM's `continuous_usage_stats`."""
    return b'}],"usage":%b}\n\n' % encode(usage_totals(usage))


def with_prompt_ids(end: bytes, token_ids: tuple[int, ...]) -> bytes:
    """The end of a chunk, with a member that lists the prompt's token ids."""
    return b'}],"prompt_token_ids":%b%b' % (encode(token_ids), end[2:])


def logprob_value(value: float) -> float:
    """A finite log-probability."""
    return value if LOWEST_LOGPROB < value <= 0.0 else 0.0 if value > 0.0 else LOWEST_LOGPROB


def token_entry(token: TextLogprob) -> answers.TokenLogprob:
    """A token as the chat protocol lists it, without its alternatives."""
    return {
        "token": token.text,
        "logprob": None if token.logprob is None else logprob_value(token.logprob),
        "bytes": list(token.data),
    }


def token_with_alternatives(token: TextLogprob) -> answers.ListedToken:
    return {**token_entry(token), "top_logprobs": [token_entry(other) for other in token.top]}


def listed_tokens(tokens: Iterable[TextLogprob]) -> answers.Logprobs:
    """Log-probabilities of a chat's output."""
    return {"content": [token_with_alternatives(token) for token in tokens]}


def name_by_id(token: TextLogprob) -> str:
    """The token's name if vLLM's `return_tokens_as_token_ids` is set."""
    return f"token_id:{token.token_id}"


def named_by_id(token: TextLogprob) -> TextLogprob:
    """The token and its alternatives, named by their ids."""
    return replace(token, text=name_by_id(token), top=tuple(map(named_by_id, token.top)))


def prompt_entries(tokens: Iterable[TextLogprob]) -> answers.PromptLogprobs:
    """vLLM's `prompt_logprobs`: the tokens of a prompt, each with its alternatives by id.

    The entry of a token without a log-probability (the first one) is null.
    """
    return [None if token.logprob is None else _by_id(token, token.logprob) for token in tokens]


def _by_id(token: TextLogprob, logprob: float) -> dict[str, answers.PromptLogprob]:
    entries = {
        str(other.token_id): _entry(other, other.logprob, rank)
        for rank, other in enumerate(token.top, start=1)
        if other.logprob is not None
    }
    entries.setdefault(str(token.token_id), _entry(token, logprob, token.rank))
    return entries


def _entry(token: TextLogprob, logprob: float, rank: int | None) -> answers.PromptLogprob:
    return {"logprob": logprob_value(logprob), "rank": rank, "decoded_token": token.text}
