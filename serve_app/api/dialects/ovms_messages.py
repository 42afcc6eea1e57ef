"""Chat messages of OpenVINO Model Server -> plain mappings for a chat template.

OpenAI's messages whose contents are strings; the product's newer releases take lists of
text parts too. What passes is flattened as OpenAI's messages are.
"""

from __future__ import annotations

from typing import Any

from serve_app.api.dialects.openai_messages import parse_messages as flattened
from serve_app.errors import InvalidField


def parse_messages(value: Any, *, parts: bool) -> tuple[dict[str, Any], ...]:
    """Checked and flattened messages; `parts`: contents may be lists. Raises InvalidField."""
    messages = flattened(value)
    for i, message in enumerate(value):
        content, calls = message.get("content"), message.get("tool_calls") or message.get("function_call")
        is_text = isinstance(content, str) or (parts and isinstance(content, list))
        if not is_text and not (content is None and calls):
            raise InvalidField(f"messages.{i}.content: must be a string", param=f"messages.{i}.content")
    return messages
