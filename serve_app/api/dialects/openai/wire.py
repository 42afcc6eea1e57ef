"""Pieces of answers that only OpenAI's protocol has: calls of custom tools, usage details, stop reasons."""

from __future__ import annotations

from typing import Final

from serve_app.api.dialects.chat import wire
from serve_app.api.dialects.chat.custom_tools import text_of
from serve_app.api.dialects.chat.wire import encode, sse
from serve_app.api.dialects.openai import answers
from serve_app.api.protocol.dialect import ToolCall
from serve_app.types import FinishReason, ModelInfo, Usage

_REPEATED: Final = "repetition_detected"  # in the place of what stopped an answer, as vLLM has it


def head(kind: str, id: str, info: ModelInfo) -> answers.NamedBegun:
    """The members that every object of one answer begins with."""
    return {**wire.head(kind, id, info.name), "system_fingerprint": wire.fingerprint(info)}


def custom_call_fields(call: ToolCall) -> answers.CustomToolCall:
    """A call of a custom tool in a whole message."""
    return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": text_of(call.arguments)}}


def usage_fields(usage: Usage) -> answers.Usage:
    fields: answers.Usage = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.reasoning_tokens:
        fields["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return fields


def usage_chunk(head: answers.NamedBegun, usage: Usage) -> bytes:
    """The extra last chunk that `stream_options.include_usage` asks for."""
    chunk: answers.CompletionChunk = {**head, "choices": [], "usage": usage_fields(usage)}
    return sse(encode(chunk))


def stop_reason(finish: FinishReason | None, stop: str | int | None) -> str | int | None:
    """vLLM's member of a choice: the client's stop string or token that ended it, or None."""
    return _REPEATED if finish is FinishReason.REPETITION else stop if finish is FinishReason.STOP else None


def stop_member(finish: FinishReason | None, stop: str | int | None) -> bytes:
    """The member `stop_reason`, if there is one, to be written after other members."""
    reason = stop_reason(finish, stop)
    return b"" if reason is None else b',"stop_reason":' + encode(reason)
