"""Bodies of OpenAI's routes, parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve_app.api.dialects.openai.chat import ChatDialect
from serve_app.api.dialects.openai.completions import CompletionDialect
from serve_app.api.protocol.dialect import Call
from serve_app.errors import InvalidField
from serve_app.types import GenerateRequest
from tests.support.gateway import chat_body, completion_body


def parse_chat(**fields: Any) -> Call:
    return ChatDialect().parse(json.dumps(chat_body(**fields)).encode())


def parse_text(**fields: Any) -> Call:
    return CompletionDialect().parse(json.dumps(completion_body(**fields)).encode())


def request(**fields: Any) -> GenerateRequest:
    """The one request of a chat."""
    (found,) = parse_chat(**fields).requests
    return found


def refused(**fields: Any) -> InvalidField:
    """The refusal of a chat."""
    with pytest.raises(InvalidField) as caught:
        parse_chat(**fields)
    return caught.value
