"""POST /v3/tokenize of OpenVINO Model Server: texts as tokens of a model that generates or embeds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from pydantic import Field

from serve_app import limits
from serve_app.api.admission.estimates import tokens_in
from serve_app.api.dialects.chat.embeddings import required
from serve_app.api.dialects.ovms import told
from serve_app.api.edge.body import WireModel, parse_body
from serve_app.api.exchange.ask import Inquiry, count_tokens
from serve_app.api.protocol.field_doc import FieldDoc
from serve_app.api.protocol.fields import Boolean, Integer, OneOf, Text, checked, refusal
from serve_app.errors import InvalidField
from serve_app.types import ModelInfo, Prompt, TokenizeRequest, Tokens

MAX_TEXTS: Final = limits.MAX_PROMPTS
LEFT: Final = "left"


def _texts(value: Any) -> tuple[tuple[str, ...], bool]:
    """The texts, and whether they came as a list."""
    texts = [value] if type(value) is str else value
    if (
        type(texts) is not list
        or not 1 <= len(texts) <= MAX_TEXTS
        or not all(type(text) is str for text in texts)
        or sum(map(len, texts)) > limits.MAX_QUESTION_CHARS
    ):
        raise refusal(
            f"must be a string or a list of 1 to {MAX_TEXTS} strings, of {limits.MAX_QUESTION_CHARS} "
            "characters in all"
        )
    return tuple(texts), type(value) is list


_Text: TypeAlias = Annotated[str, Field(max_length=limits.MAX_QUESTION_CHARS)]
TextOrTexts: TypeAlias = _Text | Annotated[list[_Text], Field(min_length=1, max_length=MAX_TEXTS)]


class OvmsTokenizeBody(WireModel):
    """None: absent."""

    fields_required: ClassVar[tuple[str, ...]] = ("model", "text")
    fields_told: ClassVar[Mapping[str, FieldDoc]] = told.TOKENIZE

    model: Annotated[str | None, Text(1, limits.MAX_MODEL_NAME_CHARS)] = None
    text: Annotated[tuple[tuple[str, ...], bool] | None, checked(_texts, TextOrTexts)] = None
    max_length: Annotated[int | None, Integer(1, limits.MAX_QUESTION_TOKENS)] = None
    pad_to_max_length: Annotated[bool | None, Boolean] = None
    padding_side: Annotated[str | None, OneOf((LEFT, "right"))] = None
    add_special_tokens: Annotated[bool | None, Boolean] = None


def parse_tokenize(raw: bytes) -> Inquiry[Tokens]:
    """Raises InvalidBody or InvalidField."""
    body = parse_body(OvmsTokenizeBody, raw)
    model = required("model", body.model)
    texts, is_list = required("text", body.text)
    if body.pad_to_max_length and len(texts) * (body.max_length or 0) > limits.MAX_QUESTION_TOKENS:
        most = limits.MAX_QUESTION_TOKENS // len(texts)
        raise InvalidField("max_length", f"must be at most {most} with pad_to_max_length and so many texts")
    questions = tuple(
        TokenizeRequest(
            id="",
            prompt=Prompt(text=text),
            add_special_tokens=body.add_special_tokens is not False,
            longest=body.max_length,
        )
        for text in texts
    )
    return Inquiry(
        model=model,
        questions=questions,
        answer=partial(_tokens, body=body.without("text"), is_list=is_list),
        estimate=lambda: sum(map(tokens_in, texts)),
        tokens=count_tokens,
        names={"prompt": "text"},
    )


def _tokens(info: ModelInfo, replies: list[Tokens], body: OvmsTokenizeBody, is_list: bool) -> dict[str, Any]:
    rows = [list(reply.token_ids) for reply in replies]
    if body.pad_to_max_length:
        width = body.max_length or max(map(len, rows))
        rows = [_padded(row, width, info.filler_token_id, body.padding_side == LEFT) for row in rows]
    return {"tokens": rows if is_list else rows[0]}


def _padded(row: list[int], width: int, pad: int, on_the_left: bool) -> list[int]:
    padding = [pad] * (width - len(row))
    return padding + row if on_the_left else row + padding
