"""Chat messages of MindIE -> plain mappings for a chat template.

Stricter than OpenAI's: every content is a string that is not empty, and all of them
together have a limit in characters. What passes is flattened as OpenAI's messages are.
"""

from __future__ import annotations

from typing import Any, Final

from serve_app.api.dialects.openai_messages import parse_messages as flattened
from serve_app.errors import InvalidField, PromptTooLong

ROLES: Final = ("system", "user", "assistant", "tool")


def parse_messages(value: Any, max_chars: int) -> tuple[dict[str, Any], ...]:
    """Checked and flattened messages, of at most `max_chars` characters.

    Raises InvalidField, UnsupportedField or PromptTooLong.
    """
    if not isinstance(value, list) or not value:
        raise InvalidField("messages: is required and must be a list of messages", param="messages")
    chars = sum(_check(message, f"messages.{i}") for i, message in enumerate(value))
    if chars > max_chars:
        raise PromptTooLong(f"messages: must hold at most {max_chars} characters", param="messages")
    return flattened(value)


def _check(message: Any, where: str) -> int:
    """The number of characters of a message's content."""
    if not isinstance(message, dict):
        raise InvalidField(f"{where}: must be an object", param=where)
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise InvalidField(f"{where}.role: must be one of {', '.join(ROLES)}", param=f"{where}.role")
    if role == "tool" and not message.get("tool_call_id"):
        raise InvalidField(f"{where}.tool_call_id: is required", param=f"{where}.tool_call_id")
    if content is None and role == "assistant" and message.get("tool_calls"):
        return 0
    if not isinstance(content, str) or not content:
        raise InvalidField(
            f"{where}.content: is required and must be a string that is not empty", param=f"{where}.content"
        )
    return len(content)
