"""Pieces of Anthropic's answers: usage, and the words for an end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_app.api.dialects.anthropic.answers import MessageEnd, MessageUsage, StopDetails, StopReason
from serve_app.types import FinishReason, Usage

_REASONS: Final[Mapping[FinishReason, StopReason]] = {
    FinishReason.EOS: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTEXT: "model_context_window_exceeded",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.FILTERED: "refusal",
}
_REFUSAL: Final[StopDetails] = {
    "type": "refusal",
    "category": None,
    "explanation": "a guardrail of the server ended the answer",
}


def usage_fields(usage: Usage) -> MessageUsage:
    """The member `usage`: what was read from the cache is not among `input_tokens`."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def end_fields(finish: FinishReason | None, stop: str | int | None, *, is_window_full: bool) -> MessageEnd:
    """What says how an answer ended. `stop`: what matched; `is_window_full`: the window cut it short."""
    reason: StopReason = "end_turn" if finish is None else _REASONS.get(finish, "end_turn")
    if reason == "max_tokens" and is_window_full:
        reason = "model_context_window_exceeded"
    matched = stop if finish is FinishReason.STOP and isinstance(stop, str) else None
    return {
        "stop_reason": reason if matched is None else "stop_sequence",
        "stop_sequence": matched,
        "stop_details": _REFUSAL if reason == "refusal" else None,
    }
