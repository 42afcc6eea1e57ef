"""POST /v1/embeddings of the OpenAI protocol."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from serve_app import limits
from serve_app.api.dialects.chat.embeddings import EmbeddingFields, Encoding, answer, parse_inputs, required
from serve_app.api.dialects.openai.errors import render_error
from serve_app.api.edge.body import parse_body
from serve_app.api.protocol.embed_call import EmbedCall
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Number
from serve_app.types import Embeddings, EmbedRequest, ModelInfo


class EmbeddingBody(EmbeddingFields):
    """OpenAI's fields, and those that this server adds."""

    timeout: Annotated[float | None, Number(0, limits.MAX_TIMEOUT_S, above=True)] = doc(
        "seconds; default the operator's"
    )


class EmbeddingDialect:
    """OpenAI's embeddings."""

    render_error = staticmethod(render_error)

    def parse(self, raw: bytes, endpoint: str | None = None) -> EmbedCall:
        """As `Parser.parse`."""
        body = parse_body(EmbeddingBody, raw)
        model = required("model", body.model if endpoint is None else endpoint)
        return EmbedCall(
            model=model,
            user=body.user,
            request=EmbedRequest(id="", inputs=parse_inputs(body.input), dimensions=body.dimensions),
            timeout_s=body.timeout,
            ignored=tuple(body.extra),
            render=partial(_render, body.encoding),
        )


def _render(encoding: Encoding, id: str, info: ModelInfo, embeddings: Embeddings) -> Iterator[bytes]:
    return answer({"object": "list", "model": info.name}, embeddings, encoding)
