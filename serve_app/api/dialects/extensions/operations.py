"""The routes of questions as the OpenAPI document describes them. Their errors are the path's protocol's."""

from __future__ import annotations

from typing import Any, Final

from serve_app.api.dialects.chat.examples import CHAT
from serve_app.api.dialects.extensions import answers
from serve_app.api.dialects.extensions.tokens import DetokenizeBody, TokenizeBody
from serve_app.api.dialects.extensions.watermark import DetectBody
from serve_app.api.openapi.operation import ASKS_MODEL, Answer, Body, Operation

TAG: Final = "Questions"
_MODEL: Final = "demo-chat"


def _question(summary: str, what: str, body: Body, answer: Answer) -> Operation:
    return Operation(
        summary=summary,
        tag=TAG,
        what=what,
        bodies=(body,),
        answers=(answer,),
        conditions=ASKS_MODEL,
    )


_PROMPTS: Final[dict[str, Any]] = {
    "a text": {"model": _MODEL, "prompt": "Hello!", "return_token_strs": True},
    "a chat": {key: CHAT["a question"][key] for key in ("model", "messages")},
}

TOKENIZE: Final = _question(
    "Tokenize",
    "A text, or a chat through the model's template, as tokens.",
    Body(type=TokenizeBody, examples=_PROMPTS),
    Answer(what="The tokens.", type=answers.Tokenized),
)
DETOKENIZE: Final = _question(
    "Detokenize",
    "Tokens as text.",
    Body(type=DetokenizeBody, examples={"tokens": {"model": _MODEL, "tokens": [1, 2, 3]}}),
    Answer(what="The text.", type=answers.Detokenized),
)
DETECT: Final = _question(
    "Detect a watermark",
    "Whether a text bears the watermark of a model of this server.",
    Body(type=DetectBody, examples={"a text": {"model": _MODEL, "text": "Hello! How can I help?"}}),
    Answer(what="The score.", type=answers.Detected),
)
