"""Replaces each picture in the content of messages with a note, for models that read only text.

An agent that took a screenshot sends it again with every later request, so a refusal would end its session.
"""

from __future__ import annotations

from typing import Any, Final

NOTE: Final = "[There was a picture here. The model reads text alone, and does not see it.]"
KINDS: Final = ("image", "input_image")  # types of parts: Anthropic's, and those of responses
# Members of a message, an item or a part that contain parts. Arguments of calls are not content.
_OF_PARTS: Final = ("content", "output", "source")


def with_notes(value: Any, where: str) -> tuple[Any, tuple[str, ...]]:
    """`value`, a list of messages or items, with notes in place of pictures, and the pictures' places."""
    places: list[str] = []
    return _noted(value, where, places), tuple(places)


def _noted(value: Any, where: str, places: list[str]) -> Any:
    if isinstance(value, list):
        return [_noted(part, f"{where}.{i}", places) for i, part in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if value.get("type") in KINDS:
        places.append(where)
        return {"type": "text", "text": NOTE}
    members = {name: _noted(value[name], f"{where}.{name}", places) for name in _OF_PARTS if name in value}
    return {**value, **members} if members else value
