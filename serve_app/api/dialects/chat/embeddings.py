"""What the protocols of embeddings share: OpenAI's fields, the field `input`, and answers in pieces."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np

from serve_app import limits
from serve_app.api.dialects.chat import shapes
from serve_app.api.dialects.chat.field_types import ModelName, User
from serve_app.api.edge.body import WireModel
from serve_app.api.protocol.embed_call import PIECE_NUMBERS
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import MAX_TOKEN_ID, Described, Integer, OneOf, as_integer
from serve_app.errors import InvalidField, PromptTooLong
from serve_app.types import Embeddings

_encode: Final = msgspec.json.Encoder().encode

ValueT = TypeVar("ValueT")


class Encoding(StrEnum):
    """How a vector is written."""

    FLOAT = "float"  # a list of numbers, exact
    BASE64 = "base64"  # little-endian float32


class EmbeddingFields(WireModel):
    """OpenAI's own fields. None: absent."""

    model: ModelName = doc("the endpoint that answers", required=True)
    input: Annotated[Any, Described(shapes.EmbedInputs)] = doc(
        "a vector each",
        accepts=(
            f"a string, token ids, or a list of 1 to {limits.MAX_EMBED_INPUTS} of either; no empty text"
        ),
        required=True,
    )
    encoding_format: Annotated[str | None, OneOf(Encoding)] = doc(
        "default float; base64 is little-endian float32", accepts="float or base64"
    )
    dimensions: Annotated[int | None, Integer(1, limits.MAX_DIMENSIONS)] = doc(
        "default all; shortened and normalised anew", accepts=", up to the model's own"
    )
    user: User = None

    @property
    def encoding(self) -> Encoding:
        return Encoding(self.encoding_format or Encoding.FLOAT)


def required(name: str, value: ValueT | None) -> ValueT:
    """`value`, if it is neither missing nor empty. Raises InvalidField."""
    if not value:
        raise InvalidField(name, "is required")
    return value


def parse_inputs(value: Any, *, token_ids: bool = True) -> tuple[str | tuple[int, ...], ...]:
    """The field `input`: a string or a list of strings; with `token_ids`, also ids or several lists of ids.

    No text may be empty. Raises InvalidField or PromptTooLong.
    """
    if value is None:
        raise InvalidField("input", "is required")
    many = value if isinstance(value, list) else [value]
    if token_ids and many is value and value and not isinstance(value[0], str | list):
        many = [value]
    if len(many) > limits.MAX_EMBED_INPUTS:
        raise InvalidField("input", f"must hold at most {limits.MAX_EMBED_INPUTS} texts")
    kinds = set(map(type, many))
    if kinds == {str}:
        return _texts(many)
    if token_ids and kinds == {list}:
        return tuple(map(_ids, many))
    ids = ", token ids, or a list of lists of token ids" if token_ids else ""
    raise InvalidField("input", f"must be a string, a list of strings{ids}, and not be empty")


def _texts(texts: list[str]) -> tuple[str, ...]:
    if not all(texts):
        raise InvalidField("input", "no text may be empty")
    if sum(map(len, texts)) > limits.MAX_PROMPT_CHARS:
        raise PromptTooLong.of_chars("input", limits.MAX_PROMPT_CHARS)
    return tuple(texts)


def _ids(items: list[Any]) -> tuple[int, ...]:
    # A million ids are common enough to look at their types without a Python loop.
    ids: list[Any] = items if set(map(type, items)) == {int} else [as_integer(item) for item in items]
    if not ids or None in ids or min(ids) < 0 or max(ids) > MAX_TOKEN_ID:
        raise InvalidField(
            "input", f"token ids must be integers from 0 to {MAX_TOKEN_ID}, at least one a text"
        )
    return tuple(ids)


def answer(head: Mapping[str, Any], embeddings: Embeddings, encoding: Encoding) -> Iterator[bytes]:
    """`head`'s members, then `data` and `usage`, as JSON in pieces of bounded size."""
    yield _encode(head)[:-1] + b',"data":['
    vectors = np.frombuffer(embeddings.vectors.data, "<f4").reshape(embeddings.vectors.shape)
    rows = max(1, PIECE_NUMBERS // max(1, vectors.shape[1]))
    for start in range(0, len(vectors), rows):
        part = vectors[start : start + rows]
        values: list[Any] = (
            part.tolist()
            if encoding is Encoding.FLOAT
            else [base64.b64encode(row.tobytes()).decode("ascii") for row in part]
        )
        entries = [
            {"object": "embedding", "index": index, "embedding": value}
            for index, value in enumerate(values, start)
        ]
        yield (b"," if start else b"") + _encode(entries)[1:-1]
    count = embeddings.prompt_tokens
    yield b'],"usage":' + _encode({"prompt_tokens": count, "total_tokens": count}) + b"}"
