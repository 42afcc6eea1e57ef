"""The embedding task of Databricks' Foundation Model API."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, ClassVar

from serve_app import limits
from serve_app.api.dialects.chat import shapes
from serve_app.api.dialects.chat.embeddings import Encoding, answer, parse_inputs
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.dialects.databricks.fields import (
    EndpointName,
    RouteContext,
    TaskFields,
    TextMap,
    parse_fields,
)
from serve_app.api.protocol.embed_call import EmbedCall
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Described, Integer, OneOf, Text
from serve_app.endpoints.endpoint import Task
from serve_app.types import Embeddings, EmbedRequest, ModelInfo


class EmbeddingBody(TaskFields):
    """None: absent."""

    task: ClassVar[Task] = Task.EMBEDDINGS

    input: Annotated[Any, Described(shapes.EmbedTexts)] = doc(
        "a vector each, which depends on its own text alone",
        accepts=f"a string or a list of 1 to {limits.MAX_EMBED_INPUTS} strings, none empty",
        required=True,
    )
    instruction: Annotated[str | None, Text(0, limits.MAX_PROMPT_CHARS)] = doc(
        "default none; goes before every input, with a space"
    )
    encoding_format: Annotated[str | None, OneOf(Encoding)] = doc(
        "default float; base64 is little-endian float32", accepts="float or base64"
    )
    dimensions: Annotated[int | None, Integer(1, limits.MAX_DIMENSIONS)] = doc(
        "default all", accepts=", up to the model's own"
    )
    model: Annotated[Any, Described(EndpointName)] = doc(
        "names the endpoint; ignored where the path does",
        accepts=(
            f"a string of 1 to {limits.MAX_MODEL_NAME_CHARS} characters; required below "
            "`/serving-endpoints/embeddings`"
        ),
    )
    extra_params: Annotated[dict[str, str] | None, TextMap] = doc("as in chat")


class EmbeddingDialect:
    """The dialect of embeddings, for one request: texts in, vectors out."""

    render_error = staticmethod(render_error)

    def __init__(self, target: RouteContext) -> None:
        self._target = target

    def parse(self, raw: bytes, endpoint: str | None = None) -> EmbedCall:
        """Raises InvalidBody, InvalidField, PromptTooLong or ModelNotFound."""
        body = parse_fields(EmbeddingBody, raw)
        found = body.endpoint(self._target, endpoint)
        request = EmbedRequest(
            id="",
            inputs=parse_inputs(body.input, token_ids=False),
            instruction=body.instruction or None,
            dimensions=body.dimensions,
        )
        encoding = Encoding(body.encoding_format or Encoding.FLOAT)
        return EmbedCall(model=found.name, user=body.user, request=request, render=partial(_render, encoding))


def _render(encoding: Encoding, id: str, info: ModelInfo, embeddings: Embeddings) -> Iterator[bytes]:
    return answer({"id": f"embd-{id}", "object": "list", "model": info.name}, embeddings, encoding)
