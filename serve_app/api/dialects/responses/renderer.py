"""A response as one object, or as the events by which it grows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from serve_app.api.dialects.chat.wire import encode
from serve_app.api.dialects.responses import output_items as items
from serve_app.api.dialects.responses.previous_response import packed
from serve_app.api.dialects.responses.wire import FAILED, Wire, failure, status_of
from serve_app.api.protocol.dialect import Choice
from serve_app.errors import ServeError
from serve_app.types import FinishReason, TextLogprob, TokenDelta, ToolCallDelta, Usage
from serve_app.types.control import KeptResponse


class ResponseRenderer:
    """Writes one response. The parts of choices become items, in the order in which they begin."""

    def __init__(self, wire: Wire, kept: tuple[str, bytes] | None = None) -> None:
        """`kept`: the response that this one continues, and this one's packed input. None: it is not kept."""
        self._wire = wire
        self._kept = kept
        self._last: items.Fields | None = None  # the response as it ended
        self._items: list[items.Item] = []
        self._item: items.Item | None = None  # the last of the items, while it grows
        self._pending: list[TextLogprob] = []  # of tokens that have not shown as text yet
        self._finish: FinishReason | None = None
        self._sequence = 0  # number of the next event

    # --- a stream, of one choice -----------------------------------------------------

    def event(self, prompt: int, delta: TokenDelta) -> bytes:
        events = self._begin()
        self._pending += delta.logprobs or ()
        if delta.reasoning:
            events += self._grow(items.REASONING, delta.reasoning)
        if delta.text:
            events += self._grow(items.MESSAGE, delta.text)
        for piece in delta.tool_calls:
            events += self._call(piece)
        if delta.finish is not None:
            self._finish = delta.finish
            if not self._items and self._wire.has_empty_message:
                events += self._add(self._wire.text_item(items.MESSAGE))
            events += self._close(status_of(delta.finish))
        return events

    def end(self, usage: Usage) -> bytes:
        response = self._ended(usage)
        return (
            self._begin() + self._event(f"response.{response['status']}", response=response) + self._wire.end
        )

    def broken(self, error: ServeError) -> bytes:
        if self._item is not None:
            self._item.status = items.INCOMPLETE
        response = self._wire.response(FAILED, self._output(), error=failure(error))
        return self._begin() + self._event("response.failed", response=response) + self._wire.end

    def _begin(self) -> bytes:
        """The events that begin a response, without output; empty if they were sent before."""
        if self._sequence:
            return b""
        response = self._wire.response(items.IN_PROGRESS, [])
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _grow(self, kind: str, text: str) -> bytes:
        events = b""
        item = self._item
        if not isinstance(item, items.TextItem) or item.kind != kind:
            events = self._close(items.COMPLETED)
            item = self._wire.text_item(kind)
            events += self._add(item)
        return events + self._more(item, text, **item.take(self._take()))

    def _call(self, piece: ToolCallDelta) -> bytes:
        events = b""
        item = self._item
        if not isinstance(item, items.Call) or item.index != piece.index:
            events = self._close(items.COMPLETED)
            item = self._wire.call(piece)
            events += self._add(item)
        if not item.is_told_in_pieces:
            item.add(piece.arguments)
            return events
        return events + (self._more(item, piece.arguments) if piece.arguments else b"")

    def _add(self, item: items.Item) -> bytes:
        self._items.append(item)
        self._item = item
        return b"" if isinstance(item, items.Call) and item.is_told_late else self._added(item)

    def _added(self, item: items.Item) -> bytes:
        events = [self._of_last("response.output_item.added", item=item.fields())]
        events += [self._of_last(kind, **more) for kind, more in item.begin()]
        return b"".join(events)

    def _more(self, item: items.Item, text: str, **beside: Any) -> bytes:
        item.add(text)
        return self._of_last(item.delta_type, **item.place(), delta=text, **beside)

    def _close(self, status: str) -> bytes:
        """End the item that is growing, if there is one."""
        item = self._item
        if item is None:
            return b""
        self._item = None
        late = self._added(item) if isinstance(item, items.Call) and item.is_told_late else b""
        item.status = status
        if isinstance(item, items.TextItem) and item.kind == items.MESSAGE:
            item.take(self._take())
        events = [self._of_last(kind, **more) for kind, more in item.end()]
        return b"".join([late, *events, self._of_last("response.output_item.done", item=item.fields())])

    def _of_last(self, kind: str, **members: Any) -> bytes:
        """An event about the last item."""
        return self._event(kind, output_index=len(self._items) - 1, **members)

    def _event(self, kind: str, **members: Any) -> bytes:
        event = self._wire.event(kind, {"type": kind, "sequence_number": self._sequence, **members})
        self._sequence += 1
        return event

    # --- a whole answer --------------------------------------------------------------

    def whole(self, choices: Iterable[Choice], usage: Usage) -> bytes:
        return encode(self._ended(usage, choices))

    def _put(self, choice: Choice) -> None:
        """Add the items of a choice: thoughts, then text, then calls, as in every answer without a stream."""
        first = len(self._items)
        if choice.reasoning:
            self._whole_text(items.REASONING, choice.reasoning)
        is_empty = not (choice.text or choice.calls or choice.reasoning)
        if choice.text or (is_empty and self._wire.has_empty_message):
            self._whole_text(items.MESSAGE, choice.text, choice.logprobs[choice.num_thought :])
        for index, call in enumerate(choice.calls):
            item = self._wire.call(ToolCallDelta(index=index, id=call.id, name=call.name))
            item.add(call.arguments)
            self._items.append(item)
        for each in self._items[first:]:
            each.status = items.COMPLETED
        if self._items[first:]:
            self._items[-1].status = status_of(choice.finish)

    def _whole_text(self, kind: str, text: str, logprobs: Iterable[TextLogprob] = ()) -> None:
        item = self._wire.text_item(kind)
        item.add(text)
        item.take(list(logprobs))
        self._items.append(item)

    # --- of both ---------------------------------------------------------------------

    def _take(self) -> list[TextLogprob]:
        taken, self._pending = self._pending, []
        return taken

    def _output(self) -> list[items.Fields]:
        return [item.fields() for item in self._items]

    def to_keep(self, usage: Usage, choices: Iterable[Choice] = ()) -> KeptResponse | None:
        """See `KeepsAnswer`."""
        if self._kept is None:
            return None
        (previous, input), response = self._kept, self._ended(usage, choices)
        return KeptResponse(id=response["id"], previous=previous, input=input, response=packed(response))

    def not_kept(self) -> None:
        if self._last is not None:
            self._last["store"] = False

    def _ended(self, usage: Usage, choices: Iterable[Choice] = ()) -> items.Fields:
        """The response at its end; `choices`: given if the answer is not streamed."""
        if self._last is None:
            for choice in choices:
                self._put(choice)
                if status_of(choice.finish) == items.INCOMPLETE:  # and so is the response
                    self._finish = choice.finish
            ended = self._wire.end_members(self._finish, usage)
            self._last = self._wire.response(status_of(self._finish), self._output(), **ended)
        return self._last
