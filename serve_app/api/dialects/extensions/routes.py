"""The routes for tokens and watermarks, which are the same for all protocols."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from serve_app.api.dialects.chat.examples import CHAT
from serve_app.api.dialects.extensions.tokens import (
    DetokenizeBody,
    Detokenized,
    TokenizeBody,
    Tokenized,
    parse_detokenize,
    parse_tokenize,
)
from serve_app.api.dialects.extensions.watermark import DetectBody, Detected, parse_detect
from serve_app.api.exchange.ask import QuestionRoute
from serve_app.api.openapi.operation import Answer, Body, Operation, asking
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.types import Scope

TAG: Final = "Questions"
_MODEL: Final = "demo-chat"


_question: Final = partial(asking, TAG, None)
_PROMPTS: Final[dict[str, Any]] = {
    "a text": {"model": _MODEL, "prompt": "Hello!", "return_token_strs": True},
    "a chat": {key: CHAT["a question"][key] for key in ("model", "messages")},
}

TOKENIZE: Final = _question(
    "Tokenize",
    "A text, or a chat through the model's template, as tokens.",
    Body(type=TokenizeBody, examples=_PROMPTS),
    Answer(what="The tokens.", type=Tokenized),
)
DETOKENIZE: Final = _question(
    "Detokenize",
    "Tokens as text.",
    Body(type=DetokenizeBody, examples={"tokens": {"model": _MODEL, "tokens": [1, 2, 3]}}),
    Answer(what="The text.", type=Detokenized),
)
DETECT: Final = _question(
    "Detect a watermark",
    "Whether a text bears the watermark of a model of this server.",
    Body(type=DetectBody, examples={"a text": {"model": _MODEL, "text": "Hello! How can I help?"}}),
    Answer(what="The score.", type=Detected),
)


def routes(services: Services) -> Iterator[Entry]:
    """All routes for questions. The routes for tokens also exist at the root, as in vLLM."""
    tokenize, detokenize, detect = (
        QuestionRoute(parse, services) for parse in (parse_tokenize, parse_detokenize, parse_detect)
    )
    for base in ("", "/v1"):
        yield _entry(f"{base}/tokenize", tokenize, TOKENIZE)
        yield _entry(f"{base}/detokenize", detokenize, DETOKENIZE)
    yield _entry("/v1/watermark/detect", detect, DETECT)


def _entry(path: str, app: QuestionRoute, operation: Operation) -> Entry:
    return Entry("POST", path, app, Scope.INFERENCE, operation=operation)
