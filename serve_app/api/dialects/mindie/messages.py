"""Chat messages of MindIE -> plain mappings for a chat template.

The rules are stricter than OpenAI's: only a message that calls tools may be empty, and the total number of
characters is limited.
"""

from __future__ import annotations

from typing import Any, Final

from serve_app.api.dialects.chat.messages import known
from serve_app.api.dialects.chat.messages import parse_messages as flattened
from serve_app.errors import InvalidField, PromptTooLong

ROLES: Final = ("system", "user", "assistant", "tool")


def parse_messages(value: Any, max_chars: int) -> tuple[dict[str, Any], ...]:
    """Checked and flattened messages, of at most `max_chars` characters.

    Raises InvalidField, UnsupportedField or PromptTooLong.
    """
    if not isinstance(value, list) or not value:
        raise InvalidField("messages", "is required and must be a list of messages")
    for i, message in enumerate(value):
        _check(message, f"messages.{i}")
    messages = flattened([known(message) for message in value])
    for i, message in enumerate(messages):
        # An assistant's calls come back as they were sent, with an empty content.
        if not message["content"] and "tool_calls" not in message:
            raise InvalidField(f"messages.{i}.content", "must not be empty")
    total = sum(len(message["content"]) for message in messages)
    if not total:
        raise InvalidField("messages", "must hold at least one character")
    if total > max_chars:
        raise PromptTooLong("messages", f"must hold at most {max_chars} characters")
    return messages


def _check(message: Any, where: str) -> None:
    """Check what MindIE, unlike OpenAI, requires of a message."""
    if not isinstance(message, dict):
        raise InvalidField(where, "must be an object")
    role = message.get("role")
    if role not in ROLES:
        raise InvalidField(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    if role == "tool" and not message.get("tool_call_id"):
        raise InvalidField(f"{where}.tool_call_id", "is required")
