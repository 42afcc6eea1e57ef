"""POST /v3/tokenize of OpenVINO Model Server: the tokens of texts, for a model that generates or embeds."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from serve_app import limits
from serve_app.api.admission.estimates import tokens_in
from serve_app.api.dialects.chat.embeddings import required
from serve_app.api.dialects.chat.field_types import ModelName
from serve_app.api.dialects.ovms.answers import TextTokens
from serve_app.api.edge.body import WireModel, parse_body
from serve_app.api.exchange.ask import Inquiry, count_tokens
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Flag, Integer, Mark, OneOf, Sets, checked, refusal
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

    model: ModelName = doc("whose tokenizer it is: an endpoint that generates or embeds", required=True)
    text: Annotated[
        tuple[tuple[str, ...], bool] | None, checked(_texts, TextOrTexts), Mark.UNANSWERED, Sets("prompt")
    ] = doc(
        "a string is answered with one list of tokens, a list with a list of them",
        accepts=(
            f"a string or a list of 1 to {limits.MAX_PROMPTS} strings, of {limits.MAX_QUESTION_CHARS} "
            "characters in all"
        ),
        required=True,
    )
    max_length: Annotated[int | None, Integer(1, limits.MAX_QUESTION_TOKENS)] = doc(
        "default none; cut to this many tokens; closing tokens stay"
    )
    pad_to_max_length: Flag = doc(
        "filled up to `max_length`, without one to the longest, with the model's pad token", default=False
    )
    padding_side: Annotated[str | None, OneOf((LEFT, "right"))] = doc(
        "default right; where it is filled up", accepts="left or right"
    )
    add_special_tokens: Flag = doc("those that the model wants around a text", default=True)


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
        answer=partial(_tokens, body=body.for_answer(), is_list=is_list),
        estimate=lambda: sum(map(tokens_in, texts)),
        tokens=count_tokens,
        names=body.names,
    )


def _tokens(info: ModelInfo, replies: list[Tokens], body: OvmsTokenizeBody, is_list: bool) -> TextTokens:
    rows = [list(reply.token_ids) for reply in replies]
    if body.pad_to_max_length:
        width = body.max_length or max(map(len, rows))
        rows = [_padded(row, width, info.filler_token_id, body.padding_side == LEFT) for row in rows]
    return {"tokens": rows if is_list else rows[0]}


def _padded(row: list[int], width: int, pad: int, on_the_left: bool) -> list[int]:
    padding = [pad] * (width - len(row))
    return padding + row if on_the_left else row + padding
