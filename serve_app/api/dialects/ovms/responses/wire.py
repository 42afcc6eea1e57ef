"""A response as OpenVINO Model Server writes it.

Thoughts are the summary of a reasoning item. Members without a value are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from serve_app.api.dialects.chat.wire import DONE, as_given, encode, sse
from serve_app.api.dialects.ovms.responses.body import ResponseBody
from serve_app.api.dialects.responses import output_items as items
from serve_app.api.dialects.responses import tools
from serve_app.api.dialects.responses.wire import reason_of, usage_fields
from serve_app.types import FinishReason, TextLogprob, ToolCallDelta, ToolChoice, Usage


class _Summary(items.Summary):
    """What the model thinks."""

    def place(self) -> items.Fields:
        return {"summary_index": 0, "item_id": self.id}

    def fields(self) -> items.Fields:
        return {"id": self.id, "type": self.kind, "summary": self.parts()}


class _Message(items.Message):
    """What the model says."""

    def __init__(self, id: str, *, tells_logprobs: bool) -> None:
        super().__init__(id)
        self._tells_logprobs = tells_logprobs

    def take(self, tokens: Sequence[TextLogprob]) -> items.Fields:
        taken = super().take(tokens)
        return taken if self._tells_logprobs else {}

    def place(self) -> items.Fields:
        return {"content_index": 0, "item_id": self.id}

    def _beside(self) -> items.Fields:
        return super()._beside() if self._tells_logprobs else {}


class _Call(items.Call):
    """A call of a tool."""

    def place(self) -> items.Fields:
        return {"item_id": self.id, "call_id": self.call_id}

    def end(self) -> Iterator[items.Event]:
        yield (
            "response.function_call_arguments.done",
            {**self.place(), "arguments": self.arguments},
        )


class OvmsWire:
    """Writes ids that are unique within the response, events without a name, and a terminator."""

    has_empty_message = False
    end = DONE

    def __init__(self, id: str, body: ResponseBody, choice: ToolChoice) -> None:
        """`choice`: the body's choice of tools."""
        self._head = _head(id, body, choice)
        self._tells_logprobs = body.num_logprobs is not None
        self._counts = {items.MESSAGE: 0, items.REASONING: 0}  # of items so far

    def text_item(self, kind: str) -> items.TextItem:
        number = self._counts[kind]
        self._counts[kind] += 1
        if kind == items.REASONING:
            return _Summary(f"rs-{number}")
        return _Message(f"msg-{number}", tells_logprobs=self._tells_logprobs)

    def call(self, piece: ToolCallDelta) -> items.Call:
        return _Call(piece.id or "", piece)

    def event(self, kind: str, members: items.Fields) -> bytes:
        return sse(encode(members))

    def response(self, status: str, output: Sequence[items.Fields], **members: Any) -> items.Fields:
        return {**self._head, "status": status, **members, "output": output}

    def end_members(self, finish: FinishReason | None, usage: Usage) -> items.Fields:
        reason = reason_of(finish, "max_tokens")
        ended = (
            {"completed_at": int(time.time())}
            if reason is None
            else {"incomplete_details": {"reason": reason}}
        )
        return {**ended, "usage": usage_fields(usage)}


def _head(id: str, body: ResponseBody, choice: ToolChoice) -> items.Fields:
    """The members of a response that do not change."""
    given = {
        "instructions": body.instructions,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "min_p": body.min_p,
        "max_output_tokens": body.max_output_tokens,
        "user": body.user,
    }
    options = body.text or {}
    named = {"type": "function", "name": choice.name}
    return {
        "id": f"resp-{id}",
        "object": "response",
        "created_at": int(time.time()),
        "error": None,
        "model": body.model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "store": body.store is not False,
        "text": {"format": as_given(options.get("format") or {"type": "text"})},
        "tool_choice": _choice(body.tool_choice, named) if body.tools else "none",
        "tools": as_given(tools.shown(body.tools)),
        "truncation": "disabled",
        "metadata": body.metadata or {},
        **{name: value for name, value in given.items() if value is not None},
    }


def _choice(value: Any, named: items.Fields) -> Any:
    """A choice as the client sent it, except that a named tool is written flat, without `function`."""
    is_named = isinstance(value, dict) and value.get("type") == "function"
    return named if is_named else value or "auto"
