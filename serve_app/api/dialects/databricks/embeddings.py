"""The embedding task of Databricks' Foundation Model API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

from serve_app import limits
from serve_app.api.dialects.chat import shapes
from serve_app.api.dialects.chat.embeddings import Encoding, answer, parse_inputs
from serve_app.api.dialects.databricks import told
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.dialects.databricks.fields import RouteContext, TaskFields, parse_fields
from serve_app.api.protocol.dialect import ErrorReply
from serve_app.api.protocol.embed_call import EmbedCall
from serve_app.api.protocol.field_doc import FieldDoc
from serve_app.api.protocol.fields import Described, Integer, OneOf, Text
from serve_app.endpoints.endpoint import Task
from serve_app.errors import ServeError
from serve_app.types import Embeddings, EmbedRequest, ModelInfo


class EmbeddingBody(TaskFields):
    """None: absent."""

    fields_required: ClassVar[tuple[str, ...]] = ("input",)
    fields_told: ClassVar[Mapping[str, FieldDoc]] = told.EMBEDDINGS
    task: ClassVar[Task] = Task.EMBEDDINGS
    free_form: ClassVar[tuple[str, ...]] = (*TaskFields.free_form, "input")

    input: Annotated[Any, Described(shapes.EmbedTexts)] = None
    instruction: Annotated[str | None, Text(0, limits.MAX_PROMPT_CHARS)] = None
    encoding_format: Annotated[str | None, OneOf(Encoding)] = None
    dimensions: Annotated[int | None, Integer(1, limits.MAX_DIMENSIONS)] = None


class EmbeddingDialect:
    """Embeddings: texts in, vectors out; for one request."""

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

    def render_error(self, error: ServeError) -> ErrorReply:
        return render_error(error)


def _render(encoding: Encoding, id: str, info: ModelInfo, embeddings: Embeddings) -> Iterator[bytes]:
    return answer({"id": f"embd-{id}", "object": "list", "model": info.name}, embeddings, encoding)
