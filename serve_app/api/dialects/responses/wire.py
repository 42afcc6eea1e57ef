"""What differs between protocols in a response: its members, its items, and the framing of its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from serve_app.api.dialects.chat.answers import ReasoningTokens
from serve_app.api.dialects.responses.answers import InputTokens, ResponseFault, ResponseUsage
from serve_app.api.dialects.responses.output_items import COMPLETED, INCOMPLETE, Call, Fields, TextItem
from serve_app.errors import QuotaExceeded, ServeError
from serve_app.types import FinishReason, ToolCallDelta, Usage

FAILED: Final = "failed"


class Wire(Protocol):
    """How one protocol writes one response."""

    has_empty_message: bool  # whether an answer of nothing has a message without text
    end: bytes  # what follows the last event

    def text_item(self, kind: str) -> TextItem:
        """The next item of a kind: thoughts or a message."""
        ...

    def call(self, piece: ToolCallDelta) -> Call:
        """The next item, for a call. The piece's arguments are added later, by `add`."""
        ...

    def event(self, kind: str, members: Fields) -> bytes:
        """An event as it is sent."""
        ...

    def response(self, status: str, output: Sequence[Fields], **members: Any) -> Fields:
        """The response as it is now. `members`: the ones from `end_members`, or `error`."""
        ...

    def end_members(self, finish: FinishReason | None, usage: Usage) -> Fields:
        """The members that a response gets when it ends; `finish` determines the status."""
        ...


def reason_of(finish: FinishReason | None, too_long: str) -> str | None:
    """Why an answer that ended in this way is incomplete. None: it is complete.

    `too_long`: the protocol's word for an answer that reached its limit.
    """
    if finish in (FinishReason.LENGTH, FinishReason.CONTEXT):
        return too_long
    return "content_filter" if finish is FinishReason.FILTERED else None


def status_of(finish: FinishReason | None) -> str:
    """The status of an item or a response that ended in this way."""
    return COMPLETED if reason_of(finish, "length") is None else INCOMPLETE


def failure(error: ServeError) -> ResponseFault:
    """The member `error` of a response that failed."""
    is_quota = isinstance(error, QuotaExceeded)
    return ResponseFault(code="rate_limit_exceeded" if is_quota else "server_error", message=error.message)


def usage_fields(usage: Usage) -> ResponseUsage:
    """The member `usage`."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokens(cached_tokens=usage.cached_tokens, cache_write_tokens=0),
        output_tokens=usage.completion_tokens,
        output_tokens_details=ReasoningTokens(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
