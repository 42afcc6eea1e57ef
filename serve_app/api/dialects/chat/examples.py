"""Bodies that the demo models can answer, used as examples in the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

_MODEL: Final = "demo-chat"
_MESSAGES: Final = [{"role": "user", "content": "What is the capital of France?"}]
_TEXTS: Final = ["What is the capital of France?", "Tell me the capital city of France."]

CHAT: Final[dict[str, Any]] = {
    "a question": {"model": _MODEL, "messages": _MESSAGES, "temperature": 0.1},
    "a stream": {"model": _MODEL, "messages": _MESSAGES, "stream": True, "max_tokens": 32},
}
COMPLETION: Final[dict[str, Any]] = {
    "a continuation": {"model": _MODEL, "prompt": "2 + 2 =", "max_tokens": 8, "temperature": 0},
}
RESPONSE: Final[dict[str, Any]] = {
    "a question": {"model": _MODEL, "input": _MESSAGES[0]["content"], "temperature": 0.1},
    "a stream": {"model": _MODEL, "input": _MESSAGES, "stream": True, "max_output_tokens": 32},
}
MESSAGE_TO_COUNT: Final[dict[str, Any]] = {"a question": {"model": _MODEL, "messages": _MESSAGES}}
MESSAGE: Final[dict[str, Any]] = {
    "a question": {"model": _MODEL, "messages": _MESSAGES, "max_tokens": 64, "temperature": 0.1},
    "a stream": {"model": _MODEL, "messages": _MESSAGES, "stream": True, "max_tokens": 32},
}
EMBEDDING: Final[dict[str, Any]] = {"two texts": {"model": "demo-embed", "input": _TEXTS}}
RERANK: Final[dict[str, Any]] = {
    "two documents": {"model": "demo-embed", "query": _TEXTS[0], "documents": _TEXTS}
}
TOKENIZE: Final[dict[str, Any]] = {"two texts": {"model": _MODEL, "text": _TEXTS}}
