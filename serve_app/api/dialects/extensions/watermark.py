"""POST /v1/watermark/detect: whether a text bears the watermark of one of this server's models.

`{model, text}` -> `{z_score, green_fraction, num_tokens, detected}`. `model` determines the tokenizer and the
watermark's key; a text by another model is scored as if it had no watermark.
"""

from __future__ import annotations

from typing import Annotated, Final

from typing_extensions import TypedDict

from serve_app import limits
from serve_app.api.admission.estimates import tokens_in
from serve_app.api.dialects.extensions.tokens import required
from serve_app.api.edge.body import WireModel, parse_body
from serve_app.api.exchange.ask import Inquiry
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Text
from serve_app.errors import InvalidField
from serve_app.types import DetectRequest, ModelInfo, WatermarkScore

DETECTED_Z: Final = 4.0  # standard deviations: one unmarked text in 30 000 has as many


class Detected(TypedDict):
    """How far a text's number of green tokens is from what chance would give, in standard deviations."""

    z_score: float
    green_fraction: float
    num_tokens: int
    detected: bool


class DetectBody(WireModel):
    """A text, and the model that may have written it."""

    model: Annotated[str | None, Text(1, limits.MAX_MODEL_NAME_CHARS)] = doc(required=True)
    text: Annotated[str | None, Text(1, limits.MAX_QUESTION_CHARS)] = doc(required=True)


def parse_detect(raw: bytes) -> Inquiry[WatermarkScore]:
    """Raises InvalidBody or InvalidField."""
    body = parse_body(DetectBody, raw)
    if body.text is None:
        raise InvalidField("text", "is required")
    question = DetectRequest(id="", text=body.text)
    return Inquiry(
        model=required(body.model),
        questions=(question,),
        answer=_score,
        estimate=lambda: tokens_in(question.text),
        tokens=lambda replies: max(replies[0].num_tokens, tokens_in(question.text)),
    )


def _score(info: ModelInfo, replies: list[WatermarkScore]) -> Detected:
    (reply,) = replies
    return {
        "z_score": reply.z_score,
        "green_fraction": reply.green_fraction,
        "num_tokens": reply.num_tokens,
        "detected": reply.z_score >= DETECTED_Z,
    }
