"""A response as OpenAI writes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from serve_app.api.dialects.chat.wire import as_given, encode, named_sse
from serve_app.api.dialects.responses import output_items as items
from serve_app.api.dialects.responses import tools
from serve_app.api.dialects.responses.body import ResponseBody
from serve_app.api.dialects.responses.client_tools import ClientToolCall
from serve_app.api.dialects.responses.previous_response import PREFIXES
from serve_app.api.dialects.responses.wire import reason_of, usage_fields
from serve_app.types import FinishReason, ModelInfo, ToolCallDelta, Usage


class OpenaiWire:
    """Writes all members, even those not asked for, with globally unique ids and named events."""

    has_empty_message = True
    end = b""

    def __init__(self, id: str, info: ModelInfo, body: ResponseBody, *, stores: bool = False) -> None:
        """`stores`: whether the response is kept."""
        self._id = id
        self._head = {**_head(id, info, body), "store": stores}
        self._namespaces, self._customs = tools.namespaces(body.tools), tools.customs(body.tools)
        self._summarises = body.summary is not None
        self._client_run = tools.client_run(body.tools)
        self._count = 0  # of items so far

    def text_item(self, kind: str) -> items.TextItem:
        if kind == items.MESSAGE:
            return items.Message(self._next_id("msg"))
        return (items.Summary if self._summarises else items.Reasoning)(self._next_id("rs"))

    def call(self, piece: ToolCallDelta) -> items.Call:
        name = piece.name or ""
        if name in self._client_run:
            return ClientToolCall(self._next_id(PREFIXES[f"{name}_call"]), piece)
        if name in self._customs:
            return items.CustomCall(self._next_id("ctc"), piece, self._namespaces.get(name))
        return items.Call(self._next_id("fc"), piece, self._namespaces.get(name))

    def event(self, kind: str, members: items.Fields) -> bytes:
        return named_sse(kind, encode(members))

    def response(self, status: str, output: Sequence[items.Fields], **members: Any) -> items.Fields:
        return {**self._head, "status": status, "output": output, **members}

    def end_members(self, finish: FinishReason | None, usage: Usage) -> items.Fields:
        reason = reason_of(finish, "max_output_tokens")
        return {
            "completed_at": int(time.time()) if reason is None else None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": usage_fields(usage),
        }

    def _next_id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._id}_{self._count - 1}"


def _head(id: str, info: ModelInfo, body: ResponseBody) -> items.Fields:
    """All members of a response, with their values at its beginning."""
    options = body.text or {}
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": items.IN_PROGRESS,
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
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.effort, "summary": body.summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "temperature": body.temperature,
        "text": {
            "format": as_given(options.get("format") or {"type": "text"}),
            "verbosity": options.get("verbosity"),
        },
        "tool_choice": body.tool_choice or "auto",
        "tools": as_given(tools.shown(body.tools)),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }
