"""The interface of embeddings dialects to the HTTP layer: body to `EmbedCall`, vectors to bytes.

Independent of protocols, sockets and backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from serve_app.api.protocol.dialect import Target
from serve_app.endpoints.endpoint import Task
from serve_app.types import Embeddings, EmbedRequest, ModelInfo

PIECE_NUMBERS: Final = 32_768  # written at a time: about 2 ms of work and 700 kB as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedCall(Target):
    """A checked body: what to embed and how to answer.

    `request` lacks the fields that the server sets: its id and the deadline.
    """

    model: str  # name of the endpoint
    task: Task = Task.EMBEDDINGS
    request: EmbedRequest
    ignored: tuple[str, ...] = ()  # unknown top-level fields, as sent
    names: Mapping[str, str] = field(default_factory=dict)  # a replica's name of a field -> the client's
    # The body of the answer in pieces, for a request id and the model that answered.
    render: Callable[[str, ModelInfo, Embeddings], Iterator[bytes]]
    num_prompts: int = 1  # to the gateway: an engine takes all inputs of a body as one
