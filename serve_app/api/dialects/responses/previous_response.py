"""The stored form of a response, a body's references to stored responses, and how they are resolved.

Does not depend on where responses are kept.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from serve_app.api.dialects.chat.messages import parse_string
from serve_app.errors import InvalidField, NotKept
from serve_app.types.control import KeptResponse

Item = dict[str, Any]

REFERENCE: Final = "item_reference"
PREVIOUS: Final = "previous_response_id"
_FAST: Final = 1  # of zlib's levels
_SHOWN: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")  # ids that an error may repeat
# The id of an item contains the id of its response; an `i` marks items of the response's input.
_ITEM: Final = re.compile(r"[a-z]{1,8}_([0-9a-f]{32})_(i?)\d{1,5}")
PREFIXES: Final = {  # of ids of items, by type
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
}


@dataclass(frozen=True, slots=True)
class References:
    """The references of a body."""

    previous: str  # "": no response
    items: tuple[str, ...]

    @classmethod
    def of(cls, input: Any, previous: str | None) -> References:
        """Raises InvalidField."""
        listed = input if isinstance(input, list) else []
        items = [reference_of(item, f"input.{i}") for i, item in enumerate(listed)]
        return cls(previous or "", tuple(id for id in items if id is not None))

    def __bool__(self) -> bool:
        return bool(self.previous or self.items)

    @property
    def responses(self) -> tuple[str, ...]:
        """The ids of the responses that the items belong to."""
        found = filter(None, (_ITEM.fullmatch(id) for id in self.items))
        return tuple(dict.fromkeys(f"resp_{match[1]}" for match in found))

    def found(self, kept: Mapping[str, KeptResponse]) -> Earlier:
        """Look up the references in `kept`. Raises NotKept for a missing response."""
        wanted: set[str] = set(self.responses)
        outputs = {id: unpacked(kept[id].response)["output"] for id in wanted & kept.keys()}
        items = {item["id"]: item for output in outputs.values() for item in output}
        with_input = {match[1] for match in map(_ITEM.fullmatch, self.items) if match and match[2]}
        for id in with_input:
            if (response := kept.get(f"resp_{id}")) is not None:
                items |= {item["id"]: item for item in input_of(response)}
        return Earlier(history_of(self.previous, kept), items)


@dataclass(frozen=True, slots=True)
class Earlier:
    """The conversation before a body, and the kept items that the body refers to."""

    history: Sequence[Item] = ()
    items: Mapping[str, Item] = field(default_factory=dict)  # by their ids

    def resolved(self, input: Any) -> Any:
        """`input`, with its references replaced by the items. Raises NotKept."""
        if not isinstance(input, list):
            return input
        return [self._resolved(item, f"input.{i}") for i, item in enumerate(input)]

    def _resolved(self, item: Any, where: str) -> Any:
        id = reference_of(item, where)
        if id is None:
            return item
        if id not in self.items:
            raise NotKept(
                f"{where}.id",
                f"Item with id {shown(id)} not found. Items are not kept when `store` is false, or for ever: "
                "send the item itself, or remove it from the input.",
                joint=None,
            )
        return self.items[id]


def reference_of(item: Any, where: str) -> str | None:
    """The id that an item refers to; None if it does not refer to another item. Raises InvalidField."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type")
    if kind != REFERENCE and not (kind is None and item.keys() <= {"id", "type"} and "id" in item):
        return None
    id = parse_string(item.get("id"), f"{where}.id")
    if not id:
        raise InvalidField(f"{where}.id", "must not be empty")
    return id


def history_of(last: str, kept: Mapping[str, KeptResponse]) -> list[Item]:
    """The items of the response `last` and of all responses before it, the earliest first.

    Raises NotKept for a missing response.
    """
    chain: list[KeptResponse] = []
    while last:
        response = kept.get(last)
        if response is None:
            raise NotKept(PREVIOUS, f"Previous response with id {shown(last)} not found.", joint=None)
        chain.append(response)
        last = response.previous
    return [
        item
        for response in reversed(chain)
        for item in (*input_of(response), *unpacked(response.response)["output"])
    ]


def input_of(response: KeptResponse) -> Iterator[Item]:
    """The response's own input as OpenAI lists it: items with ids, and messages of parts."""
    value = unpacked(response.input)
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    for number, item in enumerate(items):
        kind = item.get("type") or "message"
        prefix = PREFIXES.get(kind, "item")
        id = item.get("id") or f"{prefix}_{response.id.removeprefix('resp_')}_i{number}"
        status = item.get("status") or "completed"
        yield {**item, "type": kind, "id": id, "status": status, **_content(item, kind)}


def _content(item: Item, kind: str) -> Item:
    """The content of a message, as a list of parts."""
    content = item.get("content")
    if kind != "message" or not isinstance(content, str):
        return {}
    if item["role"] == "assistant":
        return {"content": [{"type": "output_text", "text": content, "annotations": []}]}
    return {"content": [{"type": "input_text", "text": content}]}


def packed(value: Any) -> bytes:
    """JSON, compressed."""
    return zlib.compress(msgspec.json.encode(value), _FAST)


def unpacked(data: bytes) -> Any:
    """The reverse of `packed`."""
    return msgspec.json.decode(zlib.decompress(data))


def shown(id: str) -> str:
    """An id as shown in errors."""
    return f"'{id}'" if _SHOWN.fullmatch(id) else "of this kind"
