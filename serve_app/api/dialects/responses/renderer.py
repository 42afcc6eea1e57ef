"""A response as one object, or as the events by which it grows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from serve_app.api.dialects.base import Choice
from serve_app.api.dialects.chat.wire import encode
from serve_app.api.dialects.openai.errors import TABLE
from serve_app.api.dialects.openai.responses import tools
from serve_app.api.dialects.openai.responses.body import ResponseBody
from serve_app.api.dialects.openai.responses.output_items import (
    COMPLETED,
    IN_PROGRESS,
    Call,
    Fields,
    Item,
    Message,
    Reasoning,
)
from serve_app.errors import ServeError
from serve_app.types import FinishReason, ModelInfo, TextLogprob, TokenDelta, ToolCallDelta, Usage

INCOMPLETE: Final = "incomplete"
FAILED: Final = "failed"

# How a response is incomplete, by what ended its only choice; any other end completes it.
_REASONS: Final = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTEXT: "max_output_tokens",
    FinishReason.FILTERED: "content_filter",
}
_TOO_MANY: Final = 429  # the status of limits of the caller, whose failures have a code of their own


class ResponseRenderer:
    """Writes one response. Its only choice becomes items, in the order in which they begin."""

    def __init__(self, id: str, info: ModelInfo, body: ResponseBody) -> None:
        self._id = id
        self._head = _head(f"resp_{id}", info, body)
        self._items: list[Item] = []
        self._item: Reasoning | Message | Call | None = None  # the last of the items, while it grows
        self._pending: list[TextLogprob] = []  # of tokens that have not shown as text yet
        self._finish: FinishReason | None = None
        self._sequence = 0  # number of the next event

    # --- a stream --------------------------------------------------------------------

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        events = self._begin()
        self._pending += delta.logprobs or ()
        if delta.reasoning:
            self._pending.clear()  # log-probabilities are told of what is said alone
            events += self._grow(Reasoning, delta.reasoning)
        if delta.text:
            events += self._grow(Message, delta.text)
        for piece in delta.tool_calls:
            events += self._call(piece)
        if delta.finish is not None:
            self._finish = delta.finish
            if not self._items:
                events += self._add(Message(self._item_id(Message)))
            events += self._close(INCOMPLETE if delta.finish in _REASONS else COMPLETED)
        return events

    def end(self, usage: Usage) -> bytes:
        response = self._ended(self._finish, usage)
        return self._begin() + self._event(f"response.{response['status']}", response=response)

    def broken(self, error: ServeError) -> bytes:
        code = "rate_limit_exceeded" if TABLE[error.condition].status == _TOO_MANY else "server_error"
        fault = {"code": code, "message": error.message}
        response = self._response(FAILED, error=fault, output=self._output(INCOMPLETE))
        return self._begin() + self._event("response.failed", response=response)

    def _begin(self) -> bytes:
        """The events of a response that has no output yet, once."""
        if self._sequence:
            return b""
        response = self._response(IN_PROGRESS)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _grow(self, kind: type[Reasoning] | type[Message], text: str) -> bytes:
        events = b""
        item = self._item
        if not isinstance(item, kind):
            events = self._close(COMPLETED)
            item = kind(self._item_id(kind))
            events += self._add(item)
        logprobs = {"logprobs": item.take_logprobs(self._take())} if isinstance(item, Message) else {}
        return events + self._more(item, text, **logprobs)

    def _call(self, piece: ToolCallDelta) -> bytes:
        events = b""
        item = self._item
        if not isinstance(item, Call) or item.index != piece.index:
            events = self._close(COMPLETED)
            item = Call(self._item_id(Call), piece)
            events += self._add(item)
        return events + (self._more(item, piece.arguments) if piece.arguments else b"")

    def _add(self, item: Reasoning | Message | Call) -> bytes:
        self._items.append(item)
        self._item = item
        events = [self._of_last("response.output_item.added", item=item.fields(IN_PROGRESS))]
        events += [self._of_last(kind, **more) for kind, more in item.begin()]
        return b"".join(events)

    def _more(self, item: Item, text: str, **beside: Any) -> bytes:
        item.add(text)
        return self._of_last(item.delta_type, **item.place(), delta=text, **beside)

    def _close(self, status: str) -> bytes:
        """End the item that grows, if there is one."""
        item = self._item
        if item is None:
            return b""
        self._item = None
        if isinstance(item, Message):
            item.take_logprobs(self._take())
        events = [self._of_last(kind, **more) for kind, more in item.end()]
        return b"".join([*events, self._of_last("response.output_item.done", item=item.fields(status))])

    def _of_last(self, kind: str, **members: Any) -> bytes:
        """An event about the last item."""
        return self._event(kind, output_index=len(self._items) - 1, **members)

    def _event(self, kind: str, **members: Any) -> bytes:
        payload = encode({"type": kind, "sequence_number": self._sequence, **members})
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), payload)

    # --- a whole answer --------------------------------------------------------------

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        (choice,) = choices
        if choice.reasoning:
            thoughts = Reasoning(self._item_id(Reasoning))
            thoughts.add(choice.reasoning)
            self._items.append(thoughts)
        if choice.text or not (choice.calls or choice.reasoning):
            message = Message(self._item_id(Message))
            message.add(choice.text)
            message.take_logprobs(choice.logprobs[usage.reasoning_tokens :])
            self._items.append(message)
        for index, call in enumerate(choice.calls):
            item = Call(self._item_id(Call), ToolCallDelta(index=index, id=call.id, name=call.name))
            item.add(call.arguments)
            self._items.append(item)
        return encode(self._ended(choice.finish, usage))

    # --- of both ---------------------------------------------------------------------

    def _item_id(self, kind: type[Item]) -> str:
        """The id of the item that comes next."""
        return f"{kind.prefix}_{self._id}_{len(self._items)}"

    def _take(self) -> list[TextLogprob]:
        taken, self._pending = self._pending, []
        return taken

    def _output(self, last: str) -> list[Fields]:
        """The items; `last`: the status of the last of them."""
        ended = [item.fields(COMPLETED) for item in self._items[:-1]]
        return ended + [item.fields(last) for item in self._items[-1:]]

    def _ended(self, finish: FinishReason | None, usage: Usage) -> Fields:
        reason = None if finish is None else _REASONS.get(finish)
        status = COMPLETED if reason is None else INCOMPLETE
        return self._response(
            status,
            completed_at=int(time.time()) if reason is None else None,
            incomplete_details=None if reason is None else {"reason": reason},
            output=self._output(status),
            usage=usage_fields(usage),
        )

    def _response(self, status: str, **members: Any) -> Fields:
        return {**self._head, "status": status, **members}


def usage_fields(usage: Usage) -> Fields:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _head(id: str, info: ModelInfo, body: ResponseBody) -> Fields:
    """All members of a response, as they are at its begin."""
    effort = None if body.reasoning is None else body.reasoning.effort
    options = body.text or {}
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "status": IN_PROGRESS,
        "completed_at": None,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": info.name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": body.temperature,
        "text": {"format": options.get("format") or {"type": "text"}, "verbosity": options.get("verbosity")},
        "tool_choice": body.tool_choice or "auto",
        "tools": tools.shown(body.tools),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }
