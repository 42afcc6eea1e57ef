"""POST /v3/rerank of OpenVINO Model Server: documents in order of their similarity to a query.

Similarity is the cosine of two vectors of an embedding model, from -1 to 1. OpenVINO Model Server itself uses
a cross-encoder, whose scores have another scale; only the order matters.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Final

import msgspec
import numpy as np

from serve_app import limits
from serve_app.api.dialects.chat.embeddings import required
from serve_app.api.dialects.chat.field_types import ModelName
from serve_app.api.dialects.ovms.answers import Ranked
from serve_app.api.dialects.ovms.errors import OvmsDialect
from serve_app.api.edge.body import WireModel, parse_body
from serve_app.api.protocol.embed_call import EmbedCall
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Flag, Integer, Sets, Text, Texts
from serve_app.errors import PromptTooLong
from serve_app.types import Embeddings, EmbedRequest, ModelInfo

MAX_DOCUMENTS: Final = limits.MAX_EMBED_INPUTS - 1  # the query is embedded with them

_encode: Final = msgspec.json.Encoder().encode


class RerankBody(WireModel):
    """None: absent."""

    model: ModelName = doc("the endpoint that answers: one that embeds", required=True)
    query: Annotated[str | None, Text(1, limits.MAX_PROMPT_CHARS)] = doc(
        "what the documents are compared with", required=True
    )
    documents: Annotated[
        tuple[str, ...] | None, Texts(MAX_DOCUMENTS, limits.MAX_PROMPT_CHARS), Sets("input")
    ] = doc("are ranked by the cosine of their vectors with the query's", required=True)
    top_n: Annotated[int | None, Integer(1, limits.MAX_TOKENS)] = doc("default all; only this many best ones")
    return_documents: Flag = doc("adds `document` with its `text`", default=False)


class RerankDialect(OvmsDialect):
    """OpenVINO Model Server's ranking, computed from embeddings."""

    def parse(self, raw: bytes, endpoint: str | None = None) -> EmbedCall:
        """As `Parser.parse`. The first text of the call is the query."""
        body = parse_body(RerankBody, raw)
        model = required("model", body.model if endpoint is None else endpoint)
        documents = required("documents", body.documents)
        inputs = (required("query", body.query), *documents)
        if sum(map(len, inputs)) > limits.MAX_PROMPT_CHARS:
            raise PromptTooLong(
                "documents", f"must hold at most {limits.MAX_PROMPT_CHARS} characters in all, with the query"
            )
        texts = documents if body.return_documents else None
        return EmbedCall(
            model=model,
            request=EmbedRequest(id="", inputs=inputs),
            names=body.names,
            render=partial(_render, body.top_n, texts),
        )


def _render(
    top_n: int | None, texts: tuple[str, ...] | None, id: str, info: ModelInfo, embeddings: Embeddings
) -> Iterator[bytes]:
    scores = cosines(embeddings)
    results: list[Ranked] = []
    for index in np.argsort(-scores, kind="stable")[:top_n].tolist():  # equals stay in their order
        result: Ranked = {"index": index, "relevance_score": float(scores[index])}
        results.append(result if texts is None else {**result, "document": {"text": texts[index]}})
    yield _encode({"results": results})


def cosines(embeddings: Embeddings) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The cosines of the first vector with each of the others; 0 for a vector of zeros."""
    vectors = np.frombuffer(embeddings.vectors.data, "<f4").reshape(embeddings.vectors.shape)
    vectors = vectors.astype(np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = units[1:] @ units[0]
    return found
