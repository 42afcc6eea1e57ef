"""POST /v3/embeddings of OpenVINO Model Server: OpenAI's bodies; answers repeat the body's `model`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from serve_app.api.dialects.chat.embeddings import EmbeddingFields, Encoding, answer, parse_inputs, required
from serve_app.api.dialects.ovms.errors import OvmsDialect
from serve_app.api.edge.body import parse_body
from serve_app.api.protocol.embed_call import EmbedCall
from serve_app.types import Embeddings, EmbedRequest, ModelInfo


class EmbeddingBody(EmbeddingFields):
    """None: absent."""


class EmbeddingDialect(OvmsDialect):
    """OpenVINO Model Server's embeddings."""

    def parse(self, raw: bytes, endpoint: str | None = None) -> EmbedCall:
        """As `Parser.parse`."""
        body = parse_body(EmbeddingBody, raw)
        model = required("model", body.model if endpoint is None else endpoint)
        return EmbedCall(
            model=model,
            user=body.user,
            request=EmbedRequest(id="", inputs=parse_inputs(body.input), dimensions=body.dimensions),
            ignored=(),  # by this protocol in silence
            render=partial(_render, model, body.encoding),
        )


def _render(
    model: str, encoding: Encoding, id: str, info: ModelInfo, embeddings: Embeddings
) -> Iterator[bytes]:
    return answer({"object": "list", "model": model}, embeddings, encoding)
