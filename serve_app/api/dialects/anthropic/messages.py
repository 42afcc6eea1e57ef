"""The fields `system` and `messages` -> messages for a chat template.

Consecutive turns of the same role are merged into one. Depends on no other field.
"""

from __future__ import annotations

from typing import Any, Final

from serve_app.api.dialects.anthropic import content_blocks as blocks
from serve_app.api.dialects.chat.messages import MAX_TOOL_CALLS
from serve_app.errors import InvalidField
from serve_app.limits import MAX_MESSAGES

USER: Final = "user"
ASSISTANT: Final = "assistant"
SYSTEM: Final = "system"
ROLES: Final = (USER, ASSISTANT, SYSTEM)

# Claude Code begins its system prompt with a line for Anthropic's accounts. It differs from request to
# request, so nothing after it would be found in the prefix cache.
_ABOUT_CLIENT: Final = "x-anthropic-billing-header:"
# Later words of the system become part of the user's turn: few templates have a place for them, and at the
# beginning they would make all that follows new to the prefix cache.
_LATER: Final = "<system-reminder>\n{}\n</system-reminder>"
_OF_USER: Final = (*blocks.READ, blocks.TOOL_RESULT)
_OF_ASSISTANT: Final = (blocks.TEXT, blocks.THINKING, blocks.REDACTED, blocks.TOOL_USE)

Message = dict[str, Any]


def parse_messages(system: Any, messages: Any) -> tuple[Message, ...]:
    """The conversation. Raises InvalidField or UnsupportedField."""
    conversation = _Conversation()
    if system is not None and (prompt := _system_prompt(system)):
        conversation.begin(prompt)
    if messages is None:
        raise InvalidField("messages", "is required")
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidField("messages", f"must be a list of 1 to {MAX_MESSAGES} messages")
    for i, message in enumerate(messages):
        _add(conversation, message, f"messages.{i}")
    if conversation.waits_for_tools:
        raise InvalidField("messages", "must hold a tool_result block after the last tool_use block")
    return conversation.messages


class _Conversation:
    """The messages so far."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    @property
    def waits_for_tools(self) -> bool:
        """Whether the last message calls tools."""
        return bool(self._messages) and "tool_calls" in self._messages[-1]

    def begin(self, text: str) -> None:
        """Add system text before any other message."""
        self._say(SYSTEM, text)

    def system(self, text: str) -> None:
        if all(message["role"] == SYSTEM for message in self._messages):
            self.begin(text)
        else:
            self.user(_LATER.format(text))

    def user(self, text: str) -> None:
        self._say(USER, text)

    def result(self, call_id: str, text: str) -> None:
        self._messages.append({"role": "tool", "content": text, "tool_call_id": call_id})

    def assistant(self, text: str) -> None:
        self._say(ASSISTANT, text)

    def think(self, text: str) -> None:
        if text:
            turn = self._turn(ASSISTANT)
            turn["reasoning_content"] = "\n".join(filter(None, (turn.get("reasoning_content"), text)))

    def call(self, call: dict[str, Any], where: str) -> None:
        """Raises InvalidField."""
        calls = self._turn(ASSISTANT).setdefault("tool_calls", [])
        if len(calls) == MAX_TOOL_CALLS:
            raise InvalidField(where, f"must be one of at most {MAX_TOOL_CALLS} calls in a turn")
        calls.append(call)

    def _say(self, role: str, text: str) -> None:
        turn = self._turn(role)
        turn["content"] = "\n".join(filter(None, (turn["content"], text)))

    def _turn(self, role: str) -> Message:
        """The message that the role's next content is added to."""
        if not self._messages or self._messages[-1]["role"] != role:
            self._messages.append({"role": role, "content": ""})
        return self._messages[-1]


def _system_prompt(value: Any) -> str:
    texts = [blocks.read_text(block, at) for block, at in blocks.parse_blocks(value, SYSTEM, (blocks.TEXT,))]
    if texts and texts[0].startswith(_ABOUT_CLIENT):
        texts[0] = texts[0].partition("\n")[2]
    return "\n".join(filter(None, texts))


def _add(conversation: _Conversation, message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise InvalidField(where, "must be an object")
    role, content, at = message.get("role"), message.get("content"), f"{where}.content"
    if role not in ROLES:
        raise InvalidField(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    if content is None or content == []:
        raise InvalidField(at, "is required, with one block at least")
    if role == SYSTEM:
        conversation.system(blocks.parse_texts(content, at))
    elif role == USER:
        for block, place in blocks.parse_blocks(content, at, _OF_USER):
            if block["type"] == blocks.TOOL_RESULT:
                conversation.result(*blocks.parse_tool_result(block, place))
            else:
                conversation.user(blocks.read_text(block, place))
    else:
        for block, place in blocks.parse_blocks(content, at, _OF_ASSISTANT):
            _add_of_assistant(conversation, block, place)


def _add_of_assistant(conversation: _Conversation, block: blocks.Block, where: str) -> None:
    if block["type"] == blocks.TEXT:
        conversation.assistant(blocks.read_text(block, where))
    elif block["type"] == blocks.TOOL_USE:
        conversation.call(blocks.parse_tool_use(block, where), where)
    else:
        conversation.think(blocks.parse_thoughts(block, where))
