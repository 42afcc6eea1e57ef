"""A message as one object, or as the events by which it grows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from serve_app.api.dialects.anthropic import answers, errors
from serve_app.api.dialects.anthropic.output_blocks import (
    TEXT,
    THINKING,
    Block,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from serve_app.api.dialects.chat.wire import encode, named_sse
from serve_app.api.protocol.dialect import Choice
from serve_app.errors import ServeError
from serve_app.types import FinishReason, ModelInfo, TokenDelta, ToolCallDelta, Usage

_REASONS: Final[Mapping[FinishReason, answers.StopReason]] = {
    FinishReason.EOS: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTEXT: "model_context_window_exceeded",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.FILTERED: "refusal",
}
_REFUSAL: Final[answers.StopDetails] = {
    "type": "refusal",
    "category": None,
    "explanation": "a guardrail of the server ended the answer",
}
_OPEN: answers.MessageEnd = {"stop_reason": None, "stop_sequence": None, "stop_details": None}


class MessageRenderer:
    """Writes one message. The blocks are in the order in which they begin."""

    def __init__(self, id: str, info: ModelInfo, *, hides_thoughts: bool) -> None:
        self._id, self._info = id, info
        self._hides_thoughts = hides_thoughts
        self._has_begun = False
        self._num_blocks = 0
        self._block: Block | None = None  # the last one, while it grows
        self._finish: FinishReason | None = None
        self._stop: str | int | None = None
        self._is_clamped = False  # the client asked for more tokens

    # --- a stream --------------------------------------------------------------------

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        events = self._begin(delta.usage)
        self._is_clamped = self._is_clamped or delta.clamped is not None
        if delta.reasoning:
            events += self._grow(THINKING, delta.reasoning)
        if delta.text:
            events += self._grow(TEXT, delta.text)
        for piece in delta.tool_calls:
            events += self._call(piece)
        if delta.finish is not None:
            self._finish, self._stop = delta.finish, delta.stop
            events += self._close()
        return events

    def end(self, usage: Usage) -> bytes:
        ended = self._ended(self._finish, self._stop, usage)
        return (
            self._begin(usage)
            + self._close()
            + _event("message_delta", delta=ended, usage=_usage(usage))
            + _event("message_stop")
        )

    def broken(self, error: ServeError) -> bytes:
        return errors.broken(error)

    def _begin(self, usage: Usage) -> bytes:
        """The event that begins the message, without content; empty if it was sent before."""
        if self._has_begun:
            return b""
        self._has_begun = True
        return _event("message_start", message=self._message([], _OPEN, usage))

    def _grow(self, kind: str, text: str) -> bytes:
        block, events = self._block, b""
        if block is None or isinstance(block, ToolUseBlock) or block.kind != kind:
            block = TextBlock() if kind == TEXT else self._thinking()
            events = self._open(block)
        return events + self._deltas(block.add(text))

    def _call(self, piece: ToolCallDelta) -> bytes:
        block, events = self._block, b""
        if not isinstance(block, ToolUseBlock) or block.index != piece.index:
            block = ToolUseBlock(piece.index, piece.id or "", piece.name or "")
            events = self._open(block)
        return events + self._deltas(block.add(piece.arguments))

    def _open(self, block: Block) -> bytes:
        closed = self._close()
        self._block = block
        self._num_blocks += 1
        return closed + self._of_last("content_block_start", content_block=block.begin())

    def _close(self) -> bytes:
        """End the block that is growing, if there is one."""
        block, self._block = self._block, None
        return b"" if block is None else self._deltas(block.end()) + self._of_last("content_block_stop")

    def _deltas(self, deltas: Iterable[answers.ContentDelta]) -> bytes:
        return b"".join([self._of_last("content_block_delta", delta=delta) for delta in deltas])

    def _of_last(self, kind: str, **members: Any) -> bytes:
        """An event about the last block."""
        return _event(kind, index=self._num_blocks - 1, **members)

    # --- a whole answer --------------------------------------------------------------

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        self._is_clamped = choice.is_clamped
        blocks: list[Block] = []
        if choice.reasoning:
            blocks.append(_filled(self._thinking(), choice.reasoning))
        if choice.text:
            blocks.append(_filled(TextBlock(), choice.text))
        for index, call in enumerate(choice.calls):
            blocks.append(_filled(ToolUseBlock(index, call.id, call.name), call.arguments))
        ended = self._ended(choice.finish, choice.stop, usage)
        return encode(self._message([block.fields() for block in blocks], ended, usage))

    # --- of both ---------------------------------------------------------------------

    def _thinking(self) -> ThinkingBlock:
        return ThinkingBlock(is_hidden=self._hides_thoughts)

    def _ended(self, finish: FinishReason | None, stop: str | int | None, usage: Usage) -> answers.MessageEnd:
        used = usage.prompt_tokens + usage.completion_tokens
        is_window_full = self._is_clamped and used >= self._info.context_window
        return _end(finish, stop, is_window_full=is_window_full)

    def _message(
        self, content: list[answers.ContentBlock], ended: answers.MessageEnd, usage: Usage
    ) -> answers.Message:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._info.name,
            "content": content,
            **ended,
            "usage": _usage(usage),
        }


def _event(kind: str, **members: Any) -> bytes:
    return named_sse(kind, encode({"type": kind, **members}))


def _filled(block: Block, text: str) -> Block:
    for _ in block.add(text):
        pass
    return block


def _usage(usage: Usage) -> answers.MessageUsage:
    """The member `usage`, whose `input_tokens` exclude tokens read from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _end(finish: FinishReason | None, stop: str | int | None, *, is_window_full: bool) -> answers.MessageEnd:
    """The members about an answer's end. `stop`: the stop string or token, if any."""
    reason: answers.StopReason = "end_turn" if finish is None else _REASONS.get(finish, "end_turn")
    if reason == "max_tokens" and is_window_full:
        reason = "model_context_window_exceeded"
    matched = stop if finish is FinishReason.STOP and isinstance(stop, str) else None
    return {
        "stop_reason": reason if matched is None else "stop_sequence",
        "stop_sequence": matched,
        "stop_details": _REFUSAL if reason == "refusal" else None,
    }
